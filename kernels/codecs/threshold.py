"""Threshold: the elements whose magnitude is at least t, as many as there are.

    int64 nbytes           length of this wire in bytes, this header included
    if m < n / 2 are kept:
    float32 values [m]     in the order of their indices
    uint32 indices [m]     ascending
    else, which is then no longer:
    float32 values [n]     0 where not kept

n = 0 has no wire, not even a header; the capacity is 8 + 4 n.  Kept is what is not below t, so NaN
and Inf always are; a zero never is.  t is a value, or `relative` times the root mean square of what
is encoded in one call, a chunk, in which elements that are not finite count as 0.

Both sides of a comparison are float32.  The sum of squares is in float64 (each square is exact) and
in an order that does not depend on the processor: see `kernels.select`.

Error: an element that is kept is exact (a float64: rounded to float32); any other is below t, and
decodes to 0.  All of that stays in the residual, so that small gradients are sent once they add up.

Sources: Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech
2015 (there, +-t is sent for the value); Aji & Heafield, "Sparse communication for distributed
gradient descent", EMNLP 2017.
"""

import math
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from collectives.kernels.codec import Codec
from collectives.kernels.codecs.pairs import check_count, rounding_bound

HEADER_NBYTES = 8

_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_LARGEST = float(np.finfo(np.float32).max)


def cores(jit) -> SimpleNamespace:
    """The scalar functions, compiled by `jit`."""

    @jit
    def level(parameter, squares, n):
        """t as float32, of the codec's parameter and the sum of n squares."""
        t = parameter if parameter > 0 else -parameter * math.sqrt(squares / n)
        t = t if t > _SMALLEST else _SMALLEST
        return np.float32(t if t < _LARGEST else _LARGEST)

    return SimpleNamespace(level=level)


@dataclass(frozen=True)
class Threshold(Codec):
    """Send the elements of magnitude `value` or more, or `relative` root mean squares or more.

    Examples
    --------
    >>> Threshold(0.5).wire_nbytes(1000), Threshold(relative=2.0)
    (4008, Threshold(value=None, relative=2.0))
    """

    value: float | None = None
    relative: float | None = None

    name: ClassVar[str] = "threshold"
    driver: ClassVar[str] = "collectives.kernels.sparse"
    needs_work: ClassVar[bool] = True
    concatenates: ClassVar[bool] = False
    variable: ClassVar[bool] = True

    def __post_init__(self):
        if (self.value is None) == (self.relative is None):
            raise ValueError(f"threshold: value={self.value!r}, relative={self.relative!r}: "
                             "expected exactly one of the two")
        for field in ("value", "relative"):
            number = getattr(self, field)
            if number is not None:
                object.__setattr__(self, field, _checked(field, number))

    @property
    def parameter(self) -> float:
        """`value`, or minus `relative`: kernels tell them apart by the sign."""
        return -self.relative if self.value is None else self.value

    def wire_nbytes(self, n: int) -> int:
        """The capacity; the first 8 bytes of a wire say how many follow and precede."""
        check_count(self.name, n)
        return HEADER_NBYTES + 4 * n if n else 0

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """Most that decode(encode(x)) is off, per finite element.  float64, shape of x."""
        size = np.abs(x.astype(np.float64))
        squares = np.where(np.isfinite(size), np.minimum(size, _LARGEST), 0) ** 2
        t = self.value if self.value is not None else (
            self.relative * math.sqrt(squares.mean() if size.size else 0) * (1 + 2.0**-20))
        return np.minimum(size, t) + rounding_bound(x)


def _checked(field: str, number) -> float:
    if isinstance(number, bool) or not isinstance(number, Real) or not (
            _SMALLEST <= number <= _LARGEST):
        raise ValueError(f"threshold: {field}={number!r}: expected a number > 0 that float32 holds"
                         f" ({_SMALLEST:.2g} to {_LARGEST:.2g})")
    return float(number)
