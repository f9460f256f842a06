"""Where the bits of a wire with one code per element are: shared by the dense codecs.

*Blocks* (int8, int4, ternary, sign).  Each `block` elements are encoded alone, and a wire is its
blocks one after another; the last may be short.  A block of m elements, with codes of b bits:

    offset    content    dtype      shape
    0         scale      float32    ()          little-endian
    4         codes      uint8      (S,)        S = ceil(m b / 8)

Byte j holds, from its low bits to its high ones, the codes of elements j, S + j, 2 S + j, ...: so
that neighbouring bytes are made of neighbouring elements, which is what vector units and GPUs read
fast.  Fields beyond the end are 0.

*Halves* (float16, bfloat16).  Two bytes per element, nothing else.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from collectives.kernels.codec import Codec

LARGEST = float(np.finfo(np.float32).max)
_BLOCKS = (8, 65536)


@dataclass(frozen=True)
class Blocks(Codec):
    """A codec of blocks.  `block` is a multiple of 8 from 8 to 65536.

    bits : of a code
    statistic : what a block's scale is computed from: "peak", max |x|, or "total", sum of |x|
    """

    driver: ClassVar[str] = "collectives.kernels.dense"
    bits: ClassVar[int]
    statistic: ClassVar[str]
    stochastic = False  # no annotation: it would be the first field of those who have it

    block: int = 256

    def __post_init__(self):
        if not _is_int(self.block) or self.block % 8 or not _BLOCKS[0] <= self.block <= _BLOCKS[1]:
            raise ValueError(f"{self.name}: block={self.block!r}: expected a multiple of 8 from "
                             f"{_BLOCKS[0]} to {_BLOCKS[1]}")

    @property
    def align(self) -> int:
        return self.block

    def wire_nbytes(self, n: int) -> int:
        full, tail = divmod(n, self.block)
        nbytes = full * (4 + self.block * self.bits // 8)
        return nbytes + (4 + -(-tail * self.bits // 8) if tail else 0)

    def in_blocks(self, x, reduce) -> np.ndarray:
        """reduce(block of |x|, clipped to float32) for each block, repeated for its elements."""
        x = np.minimum(np.abs(np.asarray(x, np.float64)), LARGEST)
        return np.concatenate([np.zeros(0), *(
            np.full(part.size, reduce(part))
            for part in (x[i:i + self.block] for i in range(0, x.size, self.block)))])


@dataclass(frozen=True)
class Halves(Codec):
    """A codec of two bytes per element.

    largest : the largest finite number;  smallest : the smallest above 0
    precision : bits of the significand
    """

    driver: ClassVar[str] = "collectives.kernels.dense"
    bits: ClassVar[int] = 16
    statistic: ClassVar[str] = ""
    stochastic: ClassVar[bool] = False
    largest: ClassVar[float]
    smallest: ClassVar[float]
    precision: ClassVar[int]

    def wire_nbytes(self, n: int) -> int:
        return 2 * n

    def error_bound(self, x) -> np.ndarray:
        """Of each element of x, float64: half a unit in the last place, or what saturation cuts.

        A float64 is first rounded to float32, which adds half a unit of that.
        """
        x = np.abs(np.asarray(x, np.float64))
        rounding = np.maximum(x * 2.0**-self.precision, self.smallest / 2) + x * 2.0**-24
        return np.where(x > self.largest, np.maximum(rounding, x - self.largest), rounding)


def _is_int(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_rounding(codec) -> None:
    """ValueError if `stochastic` is no bool or `seed` no 64-bit number."""
    if not isinstance(codec.stochastic, bool):
        raise ValueError(f"{codec.name}: stochastic={codec.stochastic!r}: expected True or False")
    if not _is_int(codec.seed) or not 0 <= codec.seed < 2**64:
        raise ValueError(f"{codec.name}: seed={codec.seed!r}: expected an integer from 0 to "
                         f"2**64 - 1")
