"""Where plans run in tests: memories with redzones, and the messages that use parts of them."""

from dataclasses import dataclass, field

import numpy as np

from collectives import plan as p
from collectives.dtypes import carrier
from collectives.plan import Buffer

COMBINE = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum,
           "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or}
REDZONE, UNUSED, UNWRITTEN = 64, 0xAA, 0xFF


class PlanError(AssertionError):
    """Plans deadlock, touch memory that a message uses, or disagree about a message."""


@dataclass
class Message:
    """One end of a message: bytes [lo, hi) of a rank's memory; `done` of them are dealt with."""

    memory: "Memory"
    lo: int
    hi: int
    done: int = 0
    eager: np.ndarray | None = None

    @property
    def complete(self) -> bool:
        return self.eager is not None or self.done == self.hi - self.lo

    def take(self, nbytes: int) -> np.ndarray:
        """The next bytes, which may be written as soon as they are taken."""
        at, self.done = self.done, min(self.done + nbytes, self.hi - self.lo)
        data = self.memory.bytes[self.lo:self.hi] if self.eager is None else self.eager
        return data[at:self.done].copy()

    def meets(self, lo: int, hi: int) -> bool:
        return lo < self.hi and self.lo + self.done < hi


@dataclass
class Wire:
    """What is between two ranks for one place of blocks in flight."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    matched: int = 0
    queue: list[Message] = field(default_factory=list)

    def match(self) -> bool:
        """Carry out the next MPI message whose ends are both there."""
        if self.matched == min(len(self.sends), len(self.receives)):
            return False
        send, receive = self.sends[self.matched], self.receives[self.matched]
        data = send.memory.bytes[send.lo:send.hi] if send.eager is None else send.eager
        receive.memory.check_length(len(data), receive.hi - receive.lo)
        receive.hi = receive.lo + len(data)
        receive.memory.bytes[receive.lo:receive.hi] = data
        send.done = receive.done = len(data)
        self.matched += 1
        return True


class Memory:
    """All buffers of one rank."""

    def __init__(self, plan: p.Plan, given: np.ndarray, out_nbytes: int,
                 residual: np.ndarray | None = None):
        sizes = {Buffer.IN: given.nbytes, Buffer.OUT: out_nbytes,
                 Buffer.RESIDUAL: 0 if residual is None else residual.nbytes}
        self.variable = plan.signature.codec is not None and plan.signature.codec.variable
        for buffer in (Buffer.PART, Buffer.FINAL, Buffer.LAND, Buffer.WIRE):
            sizes[buffer] = int(plan.scratch[buffer]) * plan.depth
        self.base, self.sizes, end = {}, sizes, REDZONE
        for buffer, nbytes in sizes.items():
            self.base[buffer] = end
            end += -(-nbytes // 64) * 64 + REDZONE
        if plan.signature.in_place:
            self.base[Buffer.OUT] = self.base[Buffer.IN]
        self.bytes = np.full(end, UNUSED, np.uint8)
        for buffer in Buffer:
            self.view(buffer)[:] = UNWRITTEN
        self.view(Buffer.IN)[:] = given.view(np.uint8)
        if residual is not None:
            self.view(Buffer.RESIDUAL)[:] = residual.view(np.uint8)
        self.sends: list[Message] = []
        self.receives: list[Message] = []

    def view(self, buffer: Buffer) -> np.ndarray:
        return self.bytes[self.base[buffer]:][:self.sizes[buffer]]

    def check_length(self, got: int, expected: int) -> None:
        """Is a message of `got` bytes what a row expects?"""
        if got > expected or (got != expected and not self.variable):
            raise PlanError(f"a message of {got} bytes is received as {expected}")

    def read(self, lo: int, hi: int) -> np.ndarray:
        if any(m.meets(lo, hi) for m in self._pending(self.receives)):
            raise PlanError("reads what is still being received")
        return self.bytes[lo:hi]

    def may_write(self, lo: int, hi: int) -> None:
        if any(m.meets(lo, hi) for m in self._pending(self.sends)):
            raise PlanError("writes what is still being sent")
        if any(m.meets(lo, hi) for m in self._pending(self.receives)):
            raise PlanError("writes what is still being received")

    def write(self, lo: int, data: np.ndarray) -> None:
        self.may_write(lo, lo + len(data))
        self.bytes[lo:lo + len(data)] = data

    def _pending(self, messages: list[Message]) -> list[Message]:
        messages[:] = [m for m in messages if not m.complete]
        return messages

    def check_redzones(self) -> None:
        used = np.zeros(len(self.bytes), bool)
        for buffer, nbytes in self.sizes.items():
            used[self.base[buffer]:self.base[buffer] + nbytes] = True
        if (self.bytes[~used] != UNUSED).any():
            raise PlanError("writes beside its buffers")


def reduced(kernel: p.Kernel, a: np.ndarray, b: np.ndarray, plan: p.Plan) -> np.ndarray:
    """The bytes that `kernel` makes of the bytes of its operands."""
    s, wide = plan.signature, carrier(plan.accumulator)
    a, b = a.view(carrier(kernel.a)), b.view(carrier(kernel.b))
    result = COMBINE[s.op](a.astype(wide), b.astype(wide))
    if kernel.final and s.op == "mean":
        result = result / wide.type(s.size) if wide.kind == "f" else np.trunc(result / s.size)
    return result.astype(carrier(kernel.dst)).view(np.uint8)
