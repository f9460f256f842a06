"""What a codec is: a lossy wire format with its layout, its parameters and its error bound.

A codec is a frozen dataclass and has no state.  What an encoding drops goes to the caller's
`residual`, so that nothing is lost: decode(wire) + new residual = x + old residual.

Elements are of a float type (float16, bfloat16, float32, float64).  Arithmetic is in an
accumulator: float64 for float64, else float32; residuals are of the accumulator's type.  A wire
carries float32 precision or less; what a float64 loses by that is residual too.

Values that are not finite stay visible: they, or all of their block, decode to values that are not
finite, and the residual there is left as it was.  Finite values that are too large for a format are
clipped to its largest; the rest is residual.

Kernels (`kernels.fused`).  With v = a [+ decode(incoming)] [+ residual], in the accumulator:

    emit      writes                               residual becomes
    PARTIAL   dst = v, in the accumulator's type   not read, not written
    WIRE      wire = encode(v)                     v - decode(wire)
    FINAL     wire = encode(v / divisor),          v - divisor * dst
              dst = decode(wire), rounded
    VALUE     dst = v / divisor, rounded           v - divisor * dst
    DECODE    dst = decode(incoming), rounded      not read, not written

Rounded: to the type of dst, float16 saturating.  a and dst may be the same memory.
"""

from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import ClassVar

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Emit(IntEnum):
    """What a kernel writes; see the module docstring."""

    PARTIAL = 0
    WIRE = 1
    FINAL = 2
    VALUE = 3
    DECODE = 4


@dataclass(frozen=True)
class Codec:
    """Base of all codecs.

    name : as in `compression="int8"`
    align : elements; a wire may be cut where a multiple of it precedes
    concatenates : True if the wire of x followed by y is the wire of x followed by that of y, where
        len(x) is a multiple of `align`; a span of chunks is then one wire.  Else each chunk has a
        wire of its own
    variable : True if `wire_nbytes` is a capacity, and a wire starts with its length [bytes, int64]
    needs_work : True if a kernel that adds and encodes needs memory for v where there is no
        residual: dst then points to n accumulators of scratch
    driver : the module that makes its host kernels
    seed : of stochastic rounding
    """

    name: ClassVar[str]
    driver: ClassVar[str]
    needs_work: ClassVar[bool] = False
    seed = 0  # not annotated: a field of the codecs that round stochastically
    concatenates: ClassVar[bool] = True
    variable: ClassVar[bool] = False

    @property
    def align(self) -> int:
        return 1

    @property
    def parameter(self) -> float:
        """What kernels are told at run time, such as a density; 0.0 if nothing."""
        return 0.0

    @property
    def layout(self) -> "Codec":
        """This codec without what its wires' layout and its kernels do not depend on: the seed."""
        return self

    def wire_nbytes(self, n: int) -> int:
        """Bytes of the wire of n elements, or its capacity; 0 for n = 0."""
        raise NotImplementedError

    def encode(self, x, residual, wire, *, seed: int = 0) -> None:
        """Write x + residual to the wire; leave what that drops in `residual`.

        x : a float array, shape (n,), contiguous;  residual : accumulator's type, shape (n,), or
        None;  wire : uint8, shape (wire_nbytes(n),);  seed : of stochastic rounding
        """
        _arrays().encode(self, x, residual, wire, seed)

    def decode(self, wire, out) -> None:
        """out[:] = the value on the wire.  out : a float array, shape (n,)."""
        _arrays().decode(self, wire, out)

    def decode_add(self, wire, acc) -> None:
        """acc[:] += the value on the wire.  acc : float32 or float64, shape (n,)."""
        _arrays().decode_add(self, wire, acc)

    def decode_add_encode(self, incoming, x, residual, wire, *, seed: int = 0) -> None:
        """encode(x + the value on the wire `incoming`), in one pass."""
        _arrays().decode_add_encode(self, incoming, x, residual, wire, seed)


def _arrays():
    return import_module("collectives.kernels.fused")  # imports Numba
