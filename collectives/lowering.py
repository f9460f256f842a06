"""From the steps of a schedule to the rows of a plan: places, message types, kernels, hazards.

Where a value lives.  A rank's contribution starts in IN.  A partial result needs a home in the
accumulator's type: OUT if that is the tensor's type and the chunk is part of this rank's result,
else PART.  A final value goes to OUT, or to FINAL where it is only passed on.

What travels.  RECV_REDUCE messages carry raw values in the tensor's type or partial results in
the accumulator's type; RECV messages carry final values in the tensor's type.  Both ends derive
which from each other's schedule, so no header travels, and a float16 tensor is sent as float16
except for partial sums, which stay float32 until they are rounded once.

Hazards.  A row that writes a place waits for the sends that read that place.  A receive may be
posted early: as soon as the last row that uses the place it lands in is done.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from collectives import schedules
from collectives.dtypes import accumulator
from collectives.plan import Buffer, CodecKernel, Kernel, Signature, Verb
from collectives.step import Op, Step

Place = tuple[Buffer, str]  # and the stored type


@dataclass
class Row:
    """A plan row that still counts in chunks."""

    verb: Verb
    first: int
    count: int
    peer: int = -1
    a: Place | None = None
    dst: Place | None = None
    encodes: bool = False  # whether the row writes the chunks' wires too
    wire: str = ""  # stored type of the message; of a wire, "" (bytes)
    kernel: int = -1
    swap: int = 0
    after: int = -1
    sends: int = 0
    shared: bool = False  # whether the message goes through shared memory

    @property
    def chunks(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def writes(self) -> list[Buffer]:
        """The buffers in which it writes its chunks."""
        dst = [] if self.dst is None else [self.dst[0]]
        return [*dst, Buffer.WIRE] if self.encodes else dst


@dataclass(frozen=True)
class Message:
    """What both ends know about one step: is it received to be reduced, is it a raw input."""

    reduced: bool
    raw: bool


@dataclass
class Lowering:
    """Walks one rank's steps once and writes rows.

    split : True if chunks that are neighbours in a schedule are not neighbours in memory, so that
        every chunk travels in a message of its own.
    """

    signature: Signature
    split: bool
    rows: list[Row] = field(default_factory=list)
    kernels: list[Kernel | CodecKernel] = field(default_factory=list)

    def __post_init__(self):
        s = self.signature
        self.chunks = schedules.num_chunks(s.verb, s.algorithm, s.size)
        self.accumulator = accumulator(s.dtype, s.op)
        self.result = result_chunks(s, self.chunks)
        start = Buffer.OUT if s.in_place else Buffer.IN
        self.place: list[Place | None] = [
            (start, s.dtype) if held(s, c) else None for c in range(self.chunks)]
        self.last_use: dict[tuple[Buffer, int], int] = {}
        self.last_send: dict[tuple[Buffer, int], int] = {}
        self.sends = 0

    def run(self) -> list[Row]:
        s = self.signature
        steps, messages = program(s)
        final = _final_steps(steps, messages, self.result)
        for n, (step, message) in enumerate(zip(steps, messages, strict=True)):
            for piece in self._pieces(step):
                LOWER[step.op](self, piece, message, final[n])
        self._bring_out()
        return self.rows

    def _bring_out(self) -> None:
        """Copy to OUT what belongs there and is elsewhere."""
        for chunk in sorted(self.result):
            if self.place[chunk][0] is not Buffer.OUT:
                self._copy(chunk, (Buffer.OUT, self.signature.dtype))

    def _pieces(self, step: Step) -> Iterator[Step]:
        if not self.split:
            yield step
            return
        for chunk in range(step.chunk, step.chunk + step.count):
            yield step._replace(chunk=chunk, count=1)

    def _send(self, step: Step, message: Message, final: bool) -> None:
        a = self._gathered(step)
        self._add(Row(Verb.SEND, step.chunk, step.count, step.peer, a=a, wire=a[1]))

    def _recv(self, step: Step, message: Message, final: bool) -> None:
        dtype = self.signature.dtype
        dst = (Buffer.OUT if self._fits_out(step) else Buffer.FINAL, dtype)
        self._add(Row(Verb.RECV, step.chunk, step.count, step.peer, dst=dst, wire=dtype))

    def _reduce(self, step: Step, message: Message, final: bool) -> None:
        s = self.signature
        a = self._gathered(step)
        wire = s.dtype if message.raw else self.accumulator
        dst = self._home(step, final)
        # The lower rank's value is the first operand on both sides of an exchange, so that both
        # get the same bits (signed zeros, NaN payloads).
        swap = step.peer < s.rank
        kernel = Kernel(*((wire, a[1]) if swap else (a[1], wire)), dst[1], final)
        self._add(Row(Verb.REDUCE, step.chunk, step.count, step.peer, a, dst, wire=wire,
                      kernel=self._number(kernel), swap=int(swap)))

    def _number(self, kernel: Kernel | CodecKernel) -> int:
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def _copy(self, chunk: int, dst: Place) -> None:
        self._add(Row(Verb.COPY, chunk, 1, a=self.place[chunk], dst=dst))

    def _home(self, step: Step, final: bool) -> Place:
        dtype = self.signature.dtype
        if self._fits_out(step) and (final or self.accumulator == dtype):
            return Buffer.OUT, dtype
        return (Buffer.FINAL, dtype) if final else (Buffer.PART, self.accumulator)

    def _fits_out(self, step: Step) -> bool:
        """OUT of a reduce_scatter holds this rank's chunk alone, so no longer span fits."""
        chunks = range(step.chunk, step.chunk + step.count)
        alone = step.count == 1 or self.signature.verb != "reduce_scatter"
        return alone and self.result.issuperset(chunks)

    def _gathered(self, step: Step) -> Place:
        """One place for the whole span; IN of an allgather holds one chunk alone."""
        chunks = range(step.chunk, step.chunk + step.count)
        places = {self.place[c] for c in chunks}
        alone = step.count > 1 and (Buffer.IN, self.signature.dtype) in places \
            and self.signature.verb == "allgather"
        if len(places) == 1 and not alone:
            return places.pop()
        target = max(p for p in places if p is not None)
        target = (Buffer.OUT, self.signature.dtype) if target[0] is Buffer.IN else target
        for chunk in chunks:
            if self.place[chunk] != target:
                self._copy(chunk, target)
        return target

    def _add(self, row: Row) -> None:
        """Append a row, with what it must wait for."""
        n = len(self.rows)
        keys = [(buffer, c) for buffer in row.writes for c in row.chunks]
        if keys:
            row.sends = max(self.last_send.get(k, 0) for k in keys)
            if row.verb is Verb.RECV:
                row.after = max(self.last_use.get(k, -1) for k in keys)
        if row.dst is not None:
            for chunk in row.chunks:
                self.place[chunk] = row.dst
        read = [] if row.a is None else [(row.a[0], c) for c in row.chunks]
        self.last_use.update(dict.fromkeys(read + keys, n))
        if row.verb is Verb.SEND:
            self.sends += 1
            self.last_send.update(((row.a[0], c), self.sends) for c in row.chunks)
        self.rows.append(row)


# What becomes of each Op; tests/test_ops_exhaustive.py wants every Op here.
LOWER = {Op.SEND: Lowering._send, Op.RECV: Lowering._recv, Op.RECV_REDUCE: Lowering._reduce}


def result_chunks(s: Signature, chunks: int) -> set[int]:
    """The chunks that this rank's result consists of."""
    if s.verb == "reduce_scatter":
        return {s.rank}
    if s.verb == "reduce" and s.rank != s.root:
        return set()
    return set(range(chunks))


def held(s: Signature, chunk: int) -> bool:
    """True if this rank holds a value of `chunk` at the start."""
    if s.verb == "allgather":
        return chunk == s.rank
    return s.verb != "broadcast" or s.rank == s.root


def program(s: Signature) -> tuple[tuple[Step, ...], tuple[Message, ...]]:
    """This rank's steps, and what each step's message is."""
    return _program(s.verb, s.algorithm, s.rank, s.size, s.root)


@lru_cache(maxsize=1024)
def _program(verb: str, algorithm: str, rank: int, size: int, root: int):
    """`program`, which depends on neither counts nor types.

    What a message is follows from the schedule of the rank at its other end.
    """
    steps = schedules.generate(verb, algorithm, rank, size, root)
    programs = {rank: _described(steps)}
    for peer in {step.peer for step in steps}:
        programs[peer] = _described(schedules.generate(verb, algorithm, peer, size, root))
    theirs = {peer: [(step, raw) for step, raw in programs[peer] if step.peer == rank]
              for peer in programs}
    sends = {peer: iter([m for m in both if m[0].op is Op.SEND]) for peer, both in theirs.items()}
    receipts = {peer: iter([m for m in both if m[0].op is not Op.SEND])
                for peer, both in theirs.items()}
    messages = []
    for step, raw in programs[rank]:
        if step.op is Op.SEND:
            other, _ = next(receipts[step.peer])
            messages.append(Message(other.op is Op.RECV_REDUCE, raw))
        else:
            _, sent_raw = next(sends[step.peer])
            messages.append(Message(step.op is Op.RECV_REDUCE, sent_raw))
    return tuple(steps), tuple(messages)


def _described(steps: list[Step]) -> list[tuple[Step, bool]]:
    """Each step with whether its chunks are still the rank's own input."""
    touched: set[int] = set()
    out = []
    for step in steps:
        chunks = range(step.chunk, step.chunk + step.count)
        out.append((step, touched.isdisjoint(chunks)))
        if step.op is not Op.SEND:
            touched.update(chunks)
    return out


def _final_steps(
    steps: tuple[Step, ...], messages: tuple[Message, ...], result: set[int]
) -> list[bool]:
    """For each step: is the value that it leaves in its chunks the final one?

    Walking back: a chunk must be final where the schedule ends, if it is in the result, and
    where it is sent to a peer that takes it as it is; the last reduction before makes it so.
    """
    wanted = set(result)
    final = [False] * len(steps)
    for n in range(len(steps) - 1, -1, -1):
        step, chunks = steps[n], set(range(steps[n].chunk, steps[n].chunk + steps[n].count))
        if step.op is Op.SEND:
            if not messages[n].reduced:
                wanted |= chunks
            continue
        if step.op is Op.RECV_REDUCE:
            assert chunks <= wanted or wanted.isdisjoint(chunks), f"half-final span: {step}"
            final[n] = chunks <= wanted
        wanted -= chunks
    return final
