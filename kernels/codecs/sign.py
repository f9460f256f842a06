"""One bit per element: the sign, times the mean magnitude of the block.

Wire of a block of m elements, S = ceil(m / 8); see `dense_layout` for how blocks follow one
another:

    offset    content    dtype      shape
    0         scale      float32    ()       mean |x|
    4         signs      uint8      (S,)     bit p of byte j is 1 if element p S + j is negative

Decoded: scale, or -scale where the bit is 1; 0 counts as positive.  The mean is of float64 sums in
128 lanes: lane k adds the elements of bytes k, k + 128, ..., bit 0 of all of them first, then bit
1, ...; then lanes k and k + 64 are added, k and k + 32, ..., k and k + 1.  A block with a value
that is not finite has scale NaN and bits 0.

Error: | |x| - scale | per element, and the rounding of scale.  That is no small error: it needs a
residual.  The scale is the one that makes the squared error of the block smallest.

Sources: Seide, Fu, Droppo, Li & Yu, "1-bit stochastic gradient descent", Interspeech 2014;
Bernstein, Wang, Azizzadenesheli & Anandkumar, "signSGD", ICML 2018; the L1 scale with error
feedback, Karimireddy, Rebjock, Stich & Jaggi, arXiv:1901.09847.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from collectives.kernels.dense_layout import Blocks

_ZERO, _ONE, _TWO = np.float32(0), np.int32(1), np.int32(2)


@dataclass(frozen=True)
class Sign(Blocks):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "sign"
    bits: ClassVar[int] = 1
    statistic: ClassVar[str] = "total"

    block: int = 1024

    def error_bound(self, x) -> np.ndarray:
        """Of each element of x, float64: the error itself, and half a unit of the scale."""
        scale = self.in_blocks(x, np.mean)
        rounding = scale * 2.0**-23 + 2.0**-149
        return np.abs(np.abs(np.asarray(x, np.float64)) - scale) + rounding

    def cores(self, jit: Callable):
        """(scale, inverse, encode, decode), compiled by `jit`; see `Levels.cores`.

        scale(total, count) : float64 sum of |x| and its number of elements -> float32
        """
        @jit
        def scale(total, count):
            return np.float32(total / count)

        @jit
        def inverse(scale):
            return scale

        @jit
        def encode(x, inverse, draw):
            return np.uint32(x < _ZERO)

        @jit
        def decode(field, scale):
            return np.float32(_ONE - _TWO * np.int32(field)) * scale

        return scale, inverse, encode, decode
