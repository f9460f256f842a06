"""Block-scaled int4: one float32 scale per `block` elements, codes in [-7, 7], two to a byte.

Wire of a block of m elements, S = ceil(m / 2); see `dense_layout` for how blocks follow one
another:

    offset    content    dtype      shape
    0         scale      float32    ()       max|x| / 7
    4         codes      uint8      (S,)     low half of byte j: element j; high half: S + j

Error: scale / 2 per element; with stochastic rounding, scale.  See `dense_levels` for the formulas,
blocks that are 0 or not finite, and sources.
"""

from dataclasses import dataclass
from typing import ClassVar

from collectives.kernels.dense_levels import Levels


@dataclass(frozen=True)
class Int4(Levels):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "int4"
    bits: ClassVar[int] = 4
