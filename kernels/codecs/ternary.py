"""Ternary: -1, 0 or 1 times the largest magnitude of the block; 2 bits per element.

Wire of a block of m elements, S = ceil(m / 4); see `dense_layout` for how blocks follow one
another:

    offset    content    dtype      shape
    0         scale      float32    ()       max|x|
    4         codes      uint8      (S,)     bits 2p, 2p+1 of byte j: element p S + j

Codes are 00 for 0, 01 for 1 and 11 for -1.  Nearest rounding sends what exceeds half the maximum;
it needs error feedback.  Stochastic rounding is TernGrad's: sign(x) with probability |x| / scale.

Error: scale / 2 per element; with stochastic rounding, scale.  See `dense_levels` for the formulas
and blocks that are 0 or not finite.

Sources: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep
learning", NeurIPS 2017; with nearest rounding and error feedback, Lim, Andersen & Kaminsky, "3LC:
lightweight and effective traffic compression for distributed machine learning", MLSys 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

from collectives.kernels.dense_levels import Levels


@dataclass(frozen=True)
class Ternary(Levels):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "ternary"
    bits: ClassVar[int] = 2
