"""Run the plans of all ranks in one process, on NumPy bytes, and hold them to their hazards.

An independent reading of what `plan.Plan` documents.  Blocks of all ranks are visited in random
order, and what may be late is late at random:

    MPI      a send is eager (its bytes are taken at once) or a rendezvous: its bytes are read
             when both ends are there, and may not be written before.  A receive may be posted as
             soon as `after` and `sends` allow; its bytes may be neither read nor written until it
             is complete.
    shared   a queue of SLOTS messages for each pair and block in flight.  A short message is
             copied into it; the bytes of a long one are read by the receiver, piece by piece.

Each rank has one memory, with every buffer between redzones, so that addresses tell what meets.
"""

from collections import defaultdict

import numpy as np

from collectives import plan as p
from collectives.plan import Buffer, Channel, Verb
from tests.plan_memory import Memory, Message, PlanError, Wire, reduced
from tests.toy_codecs import run_kernel

SLOTS, SHORT, PIECE = 2, 32, 32  # messages, bytes, bytes


class Place:
    """One block in flight on one rank."""

    def __init__(self, machine: "Machine", rank: int, k: int):
        self.machine, self.rank, self.k = machine, rank, k
        self.plan, self.memory = machine.plans[rank], machine.memories[rank]
        self.start(k)

    def start(self, block: int) -> None:
        self.block = block if block < self.plan.first_block[-1] else None
        self.pc = self.posted = self.pulled = 0
        self.sends: list[tuple[Message, Wire, bool]] = []
        self.staged: np.ndarray | None = None  # a piece of a long message, read and not reduced
        self.took = False
        self.unsent: list[tuple[Message, Wire]] = []  # not yet in their shared queue
        self.receives: dict[int, Message] = {}
        self.variant = int(np.searchsorted(self.plan.first_block, block, side="right")) - 1

    def visit(self, wait) -> bool:
        """Do some of what can be done; `wait()` says whether to put something off."""
        moved = False
        while self.block is not None and not wait():
            self.took = False
            progress = self.post(wait) | self.move_sends(wait)
            if self.pc == len(self.plan.rows):
                if self.sends_done() == len(self.sends):
                    self.start(self.block + self.plan.depth)
                    progress = True
            elif ROWS[self.plan.rows[self.pc, p.VERB]](self, self.pc):
                self.pc += 1
                progress = True
            if not (progress or self.took):
                break
            moved = True
        return moved

    def sends_done(self) -> int:
        """How many sends, in row order, are complete."""
        return next((n for n, (m, _, _) in enumerate(self.sends) if not m.complete),
                    len(self.sends))

    def post(self, wait) -> bool:
        """Post MPI receives ahead, in row order."""
        before, rows = self.posted, self.plan.rows
        while self.posted < len(rows) and not wait():
            n = self.posted
            row = rows[n]
            if row[p.VERB] in (Verb.RECV, Verb.REDUCE) and row[p.CHANNEL] == Channel.MPI \
                    and self.nbytes(n):
                in_place = row[p.VERB] == Verb.RECV
                if row[p.AFTER] >= self.pc or (in_place and row[p.SENDS] > self.sends_done()):
                    break
                lo = self.address(row[p.DST], p.DST_OFFSET, n) if in_place else self.slot(n)
                message = self.receives[n] = Message(self.memory, lo, lo + self.nbytes(n))
                self.memory.may_write(message.lo, message.hi)
                self.memory.receives.append(message)
                self.wire(row[p.PEER], self.rank).receives.append(message)
            self.posted += 1
        return self.posted > before

    def move_sends(self, wait) -> bool:
        moved = False
        for _, wire, shared in self.sends:
            if not shared and not wait():
                moved |= wire.match()
        still = []
        for message, wire in self.unsent:
            behind = any(wire is other for _, other in still)
            if behind or len(wire.queue) == SLOTS or wait():
                still.append((message, wire))
                continue
            short = message.hi - message.lo <= SHORT
            message.eager = self.memory.bytes[message.lo:message.hi].copy() if short else None
            wire.queue.append(message)
            moved = True
        self.unsent = still
        return moved

    def send(self, n: int) -> bool:
        row, lo = self.plan.rows[n], self.address(self.plan.rows[n, p.A], p.A_OFFSET, n)
        nbytes = self.nbytes(n)
        if nbytes and self.memory.variable:
            nbytes = int(self.memory.read(lo, lo + 8).view(np.int64)[0])
        message = Message(self.memory, lo, lo + nbytes)
        shared = row[p.CHANNEL] == Channel.SHARED
        wire = self.wire(self.rank, row[p.PEER])
        data = self.memory.read(message.lo, message.hi)
        if self.nbytes(n):
            if shared:
                self.unsent.append((message, wire))
            else:
                message.eager = data.copy() if self.machine.random.random() < 0.5 else None
                wire.sends.append(message)
            self.memory.sends.append(message)
        self.sends.append((message, wire, shared))
        return True

    def recv(self, n: int) -> bool:
        if self.plan.rows[n, p.CHANNEL] == Channel.SHARED:
            return self._pull(n)
        if n in self.receives and not self.receives[n].complete:
            self.wire(self.plan.rows[n, p.PEER], self.rank).match()
        return not self.nbytes(n) or (n in self.receives and self.receives[n].complete)

    def reduce(self, n: int) -> bool:
        row, nbytes = self.plan.rows[n], self.nbytes(n)
        if row[p.CHANNEL] == Channel.SHARED:
            return self._pull(n)
        if not nbytes:
            return True
        if not self.recv(n) or row[p.SENDS] > self.sends_done():
            return False
        got = self.receives[n].hi - self.receives[n].lo
        self.combine(n, 0, self.memory.read(self.slot(n), self.slot(n) + got))
        return True

    def encode(self, n: int) -> bool:
        return self._code(n, None)

    def decode(self, n: int) -> bool:
        lo = self.address(self.plan.rows[n, p.A], p.A_OFFSET, n)
        return self._code(n, self.memory.read(lo, lo + self.nbytes(n)).copy())

    def _code(self, n: int, incoming: np.ndarray | None) -> bool:
        if self.nbytes(n):
            if self.plan.rows[n, p.SENDS] > self.sends_done():
                return False
            run_kernel(self, n, incoming)
        return True

    def copy(self, n: int) -> bool:
        row = self.plan.rows[n]
        if self.nbytes(n) and row[p.SENDS] > self.sends_done():
            return False
        lo = self.address(row[p.A], p.A_OFFSET, n)
        data = self.memory.read(lo, lo + self.nbytes(n)).copy()
        self.memory.write(self.address(row[p.DST], p.DST_OFFSET, n), data)
        return True

    def _pull(self, n: int) -> bool:
        """Take pieces as far as no pending send of this block has to be read where they go.

        A piece that is to be reduced is read into its slot first, which frees it at its sender's:
        else two ranks that exchange a message would wait for each other.
        """
        row, wire = self.plan.rows[n], self.wire(self.plan.rows[n, p.PEER], self.rank)
        length = self.nbytes(n)
        while self.pulled < length:
            if not wire.queue:
                return False
            message = wire.queue[0]
            length = message.hi - message.lo
            self.memory.check_length(length, self.nbytes(n))
            left = length - self.pulled
            short, reduced = message.eager is not None, row[p.VERB] == Verb.REDUCE
            most = left if short else min(self.plan.slot_nbytes if reduced else PIECE, left)
            if self.staged is None and reduced and not short:
                self.staged = message.take(most)
                self.memory.write(self.slot(n), self.staged)
                self.took = True
            first = int(self.pulled // row[p.WIRE_SIZE])
            if self._unread(n, first + most // row[p.WIRE_SIZE]):
                return False
            self.combine(n, first, message.take(most) if self.staged is None else self.staged)
            self.pulled, self.staged, self.took = self.pulled + most, None, True
        if self.nbytes(n):
            wire.queue.pop(0)
        self.pulled = 0
        return True

    def _unread(self, n: int, count: int) -> bool:
        row = self.plan.rows[n]
        if row[p.SENDS] <= self.sends_done():
            return False
        if self.plan.signature.codec is not None:
            return True
        dst = self.address(row[p.DST], p.DST_OFFSET, n)
        return any(m.meets(dst, dst + count * row[p.DST_SIZE]) for m, _, _ in self.sends
                   if not m.complete)

    def combine(self, n: int, first: int, incoming: np.ndarray) -> None:
        """dst = own op incoming, from element `first` on; or incoming alone."""
        row, coded = self.plan.rows[n], self.plan.signature.codec is not None
        if coded and row[p.VERB] == Verb.REDUCE:
            run_kernel(self, n, incoming)
            return
        dst = self.address(row[p.DST], p.DST_OFFSET, n)
        if row[p.VERB] == Verb.RECV:
            self.memory.write(dst + first * row[p.WIRE_SIZE], incoming)
            return
        kernel, size = self.plan.kernels[row[p.KERNEL]], len(incoming) // row[p.WIRE_SIZE]
        own = self.address(row[p.A], p.A_OFFSET, n) + first * row[p.A_SIZE]
        a = self.memory.read(own, own + size * row[p.A_SIZE])
        operands = (incoming, a) if row[p.SWAP] else (a, incoming)
        stored = reduced(kernel, *operands, self.plan)
        self.memory.write(dst + first * row[p.DST_SIZE], stored)

    def nbytes(self, n: int) -> int:
        return int(self.plan.extents[self.variant, n, p.NBYTES])

    def slot(self, n: int) -> int:
        at = self.memory.base[Buffer.LAND] + int(self.plan.scratch[Buffer.LAND]) * self.k
        return at + int(self.plan.rows[n, p.SLOT]) * self.plan.slot_nbytes

    def address(self, buffer: int, column: int, n: int) -> int:
        offset = int(self.plan.extents[self.variant, n, column])
        return (self.memory.base[buffer] + int(self.plan.stride[buffer]) * self.block
                + int(self.plan.scratch[buffer]) * self.k + offset)

    def wire(self, source: int, destination: int) -> Wire:
        return self.machine.wires[int(source), int(destination), self.k]


# What a place does for each verb, returning False if it has to wait.
ROWS = {Verb.SEND: Place.send, Verb.RECV: Place.recv, Verb.REDUCE: Place.reduce,
        Verb.COPY: Place.copy, Verb.ENCODE: Place.encode, Verb.DECODE: Place.decode}


class Machine:
    """All ranks."""

    def __init__(self, plans, inputs, out_nbytes, seed=0, residuals=None):
        self.plans, self.random = plans, np.random.default_rng(seed)
        residuals = residuals or [None] * len(plans)
        self.memories = [Memory(*rank)
                         for rank in zip(plans, inputs, out_nbytes, residuals, strict=True)]
        self.wires: dict[tuple[int, int, int], Wire] = defaultdict(Wire)
        self.places = [Place(self, rank, k) for rank, plan in enumerate(plans)
                       for k in range(plan.depth)]

    def run(self) -> list[np.ndarray]:
        """The bytes of each rank's result."""
        lazily, eagerly = (lambda: self.random.random() < 0.3), (lambda: False)
        while any(place.block is not None for place in self.places):
            order = self.random.permutation(len(self.places))
            if not any([self.places[n].visit(lazily) for n in order]) \
                    and not any([place.visit(eagerly) for place in self.places]):
                raise PlanError("deadlock")
        for memory in self.memories:
            memory.check_redzones()
        for wire in self.wires.values():
            if wire.queue or not len(wire.sends) == len(wire.receives) == wire.matched:
                raise PlanError("messages that nobody receives")
        return [memory.view(Buffer.OUT) for memory in self.memories]
