"""Lowering with a codec: every message is a wire, and rows name the fused kernels that make them.

What happens to a chunk on one rank, in the order of its schedule:

    RECV_REDUCE     a message lands: v = own value + decode(message)
    SEND, partial   encode(v + residual) -> WIRE; what it drops is the new residual
    SEND, final     as above, after the division of a mean; the rank also takes what its own wire
                    decodes to, so that all ranks hold the same
    RECV            the final wire -> WIRE, passed on unchanged and decoded to OUT, in this order

A RECV_REDUCE is fused with what follows for the same chunks: one pass decodes, adds and encodes.
A chunk is *settled* when its residual has been added and renewed.  That happens once per chunk and
rank, at its only encoding, or where its final value stays on this rank, unencoded.  So one array
of the tensor's shape holds all that this rank's encodings dropped, the chunk owner's included, and

    result + sum of new residuals = sum of (inputs + old residuals)      (a mean: times the ranks)

An algorithm in which a rank sends the same chunk to be reduced twice has no place here
(`schedules.reencodes`).
"""

from dataclasses import dataclass, field

from collectives.kernels.codec import Emit
from collectives.lowering import Lowering, Row, program
from collectives.plan import Buffer, CodecKernel, Verb
from collectives.step import Op, Step

WIRE = (Buffer.WIRE, "")


@dataclass
class Coding(Lowering):
    """See the module docstring.

    wired : the chunks whose WIRE is what is to be sent
    settled : the chunks whose residual is renewed
    undecoded : chunks whose final wire has arrived, still to be decoded
    """

    wired: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    undecoded: list[int] = field(default_factory=list)

    def run(self) -> list[Row]:
        self.steps, self.messages = program(self.signature)
        for n, step in enumerate(self.steps):
            for piece in self._pieces(step):
                CODE[step.op](self, n, piece)
        self._decode()
        for run in _runs(sorted(self.result - self.settled - self.wired), self._own):
            self._local(Emit.VALUE, run)
        self._bring_out()
        return self.rows

    def _send_wire(self, n: int, step: Step) -> None:
        emit = Emit.WIRE if self.messages[n].reduced else Emit.FINAL
        missing = [c for c in _chunks(step) if c not in self.wired]
        for run in _runs(missing, self._own):
            self._local(emit, run)
        if emit is Emit.WIRE:  # what is in WIRE is not what the chunk will be
            self.wired.difference_update(_chunks(step))
        self._add(Row(Verb.SEND, step.chunk, step.count, step.peer, a=WIRE))
        self._decode()

    def _recv_wire(self, n: int, step: Step) -> None:
        self._add(Row(Verb.RECV, step.chunk, step.count, step.peer, dst=WIRE))
        self.wired.update(_chunks(step))
        self.undecoded += self.result.intersection(_chunks(step))

    def _reduce_wire(self, n: int, step: Step) -> None:
        emits = {self._next(n, chunk) for chunk in _chunks(step)}
        emit = emits.pop() if len(emits) == 1 else Emit.PARTIAL
        a = self._gathered(step)
        if emit is Emit.FINAL and self._needs_work():
            emit = Emit.PARTIAL
        self._row(Verb.REDUCE, emit, a, step.chunk, step.count, step.peer)

    def _local(self, emit: Emit, chunks: range) -> None:
        """A kernel on this rank's own values alone."""
        self._row(Verb.ENCODE, emit, self.place[chunks[0]], chunks[0], len(chunks))

    def _row(self, verb: Verb, emit: Emit, a, first: int, count: int, peer: int = -1) -> None:
        adds = verb is Verb.REDUCE
        dst = self._target(emit, Step(Op.RECV_REDUCE, peer, first, count), adds)
        feedback = self.signature.feedback and emit is not Emit.PARTIAL
        kernel = CodecKernel(emit, adds, feedback, a[1], dst[1] if dst else "")
        row = Row(verb, first, count, peer, a, dst, emit in (Emit.WIRE, Emit.FINAL),
                  kernel=self._number(kernel))
        self._add(row)
        if emit is not Emit.PARTIAL:
            assert self.settled.isdisjoint(row.chunks), f"{self.signature.algorithm} encodes twice"
            self.settled.update(row.chunks)
        if row.encodes:
            self.wired.update(row.chunks)

    def _target(self, emit: Emit, step: Step, adds: bool):
        """Where the kernel writes beside WIRE."""
        if emit is Emit.WIRE:
            return (Buffer.PART, self.accumulator) if adds and self._needs_work() else None
        return self._home(step, final=emit is not Emit.PARTIAL)

    def _needs_work(self) -> bool:
        return self.signature.codec.needs_work and not self.signature.feedback

    def _decode(self) -> None:
        """Decode what has arrived, into OUT."""
        dtype = self.signature.dtype
        for run in _runs(sorted(self.undecoded), self._own):
            kernel = CodecKernel(Emit.DECODE, False, False, "", dtype)
            self._add(Row(Verb.DECODE, run[0], len(run), a=WIRE, dst=(Buffer.OUT, dtype),
                          kernel=self._number(kernel)))
        self.undecoded.clear()

    def _next(self, n: int, chunk: int) -> Emit:
        """What comes after step n for `chunk`, whose value that step has changed."""
        for step, message in zip(self.steps[n + 1:], self.messages[n + 1:], strict=True):
            if chunk in _chunks(step):
                if step.op is Op.SEND:
                    return Emit.WIRE if message.reduced else Emit.FINAL
                return Emit.PARTIAL
        return Emit.VALUE

    def _own(self, chunk: int):
        """What neighbours must have in common to be in one row; None stays alone."""
        alone = self.split or self.signature.verb == "reduce_scatter"
        return None if alone else self.place[chunk]


# What becomes of each Op; tests/test_ops_exhaustive.py wants every Op here.
CODE = {Op.SEND: Coding._send_wire, Op.RECV: Coding._recv_wire,
        Op.RECV_REDUCE: Coding._reduce_wire}


def _chunks(step: Step) -> range:
    return range(step.chunk, step.chunk + step.count)


def _runs(chunks: list[int], key) -> list[range]:
    """Ranges of neighbours whose keys are equal and not None."""
    runs: list[range] = []
    for chunk in chunks:
        last = runs[-1] if runs else range(0)
        if last and last.stop == chunk and key(chunk) is not None \
                and key(chunk) == key(chunk - 1):
            runs[-1] = range(last.start, chunk + 1)
        else:
            runs.append(range(chunk, chunk + 1))
    return runs
