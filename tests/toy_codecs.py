"""Two codecs that a reader can follow, and kernels in NumPy: to test plans without real kernels.

Both round to multiples of 4, so that the sums of small integers lose something at every encoding
and yet all arithmetic is exact.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from collectives import plan as p
from collectives.dtypes import carrier
from collectives.kernels.codec import Codec, Emit
from collectives.plan import Buffer

UNIT, MARK = 4.0, 12345.0


@dataclass(frozen=True)
class Blocky(Codec):
    """For each block of elements a mark, then rounded float32 values: wires concatenate."""

    block: int = 8
    name: ClassVar[str] = "blocky"

    @property
    def align(self):
        return self.block

    def wire_nbytes(self, n):
        return 4 * (n + -(-n // self.block))

    def write(self, v):
        out = []
        for lo in range(0, v.size, self.block):
            out += [np.float32([MARK]), np.rint(v[lo:lo + self.block] / UNIT).astype(np.float32)]
        return np.concatenate(out).view(np.uint8)

    def read(self, wire, n):
        values, at = [], 0
        words = wire.view(np.float32)
        for lo in range(0, n, self.block):
            assert words[at] == MARK, "a wire was cut where it may not be"
            length = min(self.block, n - lo)
            values.append(words[at + 1:at + 1 + length])
            at += 1 + length
        return UNIT * np.concatenate(values)


@dataclass(frozen=True)
class Lonely(Codec):
    """Its length, its count, and rounded values up to the last that is not 0: one per chunk."""

    work: bool = False
    name: ClassVar[str] = "lonely"
    concatenates: ClassVar[bool] = False
    variable: ClassVar[bool] = True

    @property
    def needs_work(self):
        return self.work

    def wire_nbytes(self, n):
        return 12 + 4 * n if n else 0

    def write(self, v):
        values = np.rint(v / UNIT).astype(np.float32)
        values = values[:np.append(0, np.flatnonzero(values) + 1).max()]
        head = np.array([12 + values.nbytes]).view(np.uint8), np.int32([v.size]).view(np.uint8)
        return np.concatenate([*head, values.view(np.uint8)])

    def read(self, wire, n):
        nbytes, count = wire[:8].view(np.int64)[0], wire[8:12].view(np.int32)[0]
        assert count == n, "wires of different chunks were mixed"
        out = np.zeros(n, np.float32)
        values = wire[12:nbytes].view(np.float32)
        out[:values.size] = values
        return UNIT * out


def run_kernel(place, n: int, incoming: np.ndarray | None) -> None:
    """Row n's codec kernel, as `kernels.codec` documents it, in exact arithmetic."""
    s, row = place.plan.signature, place.plan.rows[n]
    kernel = place.plan.kernels[row[p.KERNEL]]
    count = int(place.plan.extents[place.variant, n, p.COUNT])
    wide = carrier(place.plan.accumulator)

    def array(address, dtype):
        dtype = carrier(dtype)
        return place.memory.read(address, address + count * dtype.itemsize).view(dtype)

    if kernel.emit is Emit.DECODE:
        v = s.codec.read(incoming, count)
    else:
        v = array(place.address(row[p.A], p.A_OFFSET, n), kernel.a).astype(wide)
    if kernel.adds:
        v = v + s.codec.read(incoming, count)
    if kernel.emit not in (Emit.PARTIAL, Emit.DECODE):
        _settle(place, n, kernel, v, array)
        return
    _store(place, n, v, kernel.dst)


def _settle(place, n, kernel, v, array) -> None:
    s = place.plan.signature
    at = place.address(Buffer.RESIDUAL, p.RESIDUAL_OFFSET, n)
    if kernel.feedback:
        v = v + array(at, place.plan.accumulator)
    divisor = s.size if s.op == "mean" and kernel.emit is not Emit.WIRE else 1
    if kernel.emit is Emit.VALUE:
        kept = (v / divisor).astype(carrier(kernel.dst))
    else:
        wire = s.codec.write(v / divisor)
        place.memory.write(place.address(Buffer.WIRE, p.WIRE_OFFSET, n), wire)
        kept = s.codec.read(wire, v.size).astype(carrier(kernel.dst or place.plan.accumulator))
    if kernel.feedback:
        place.memory.write(at, (v - divisor * kept.astype(v.dtype)).view(np.uint8))
    if kernel.emit is not Emit.WIRE:
        _store(place, n, kept, kernel.dst)
    elif kernel.dst:  # a work area: its content is of no use to anyone
        _store(place, n, np.full_like(v, np.nan), kernel.dst)


def _store(place, n, values, dtype: str) -> None:
    at = place.address(place.plan.rows[n, p.DST], p.DST_OFFSET, n)
    place.memory.write(at, values.astype(carrier(dtype)).view(np.uint8))
