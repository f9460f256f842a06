"""Block-scaled int8: one float32 scale per `block` elements, codes in [-127, 127].

Wire of a block of m elements; see `dense_layout` for how blocks follow one another:

    offset    content    dtype      shape
    0         scale      float32    ()       max|x| / 127
    4         codes      int8       (m,)     code = round(x / scale)

Error: scale / 2 per element; with stochastic rounding, scale.  See `dense_levels` for the formulas,
blocks that are 0 or not finite, and sources.
"""

from dataclasses import dataclass
from typing import ClassVar

from collectives.kernels.dense_levels import Levels


@dataclass(frozen=True)
class Int8(Levels):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "int8"
    bits: ClassVar[int] = 8
