"""The upper half of a float32: two bytes per element.

    offset    content    dtype       shape
    0         values     bfloat16    (n,)     little-endian

Rounded to nearest, ties to even.  Finite values beyond the largest, 2^128 - 2^120, become that, and
the rest is residual; Inf and NaN stay what they are.

Error: 2^-8 |x|, or 2^-134 below 2^-126, or |x| - (2^128 - 2^120).

Source: Kalamkar et al., "A study of BFLOAT16 for deep learning training", arXiv:1905.12322.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from collectives.kernels.dense_layout import Halves

_U1, _U16, _HALF = np.uint32(1), np.uint32(16), np.uint32(0x7FFF)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_SIGN, _LARGEST, _QUIET = np.uint32(0x80000000), np.uint32(0x7F7F0000), np.uint32(0x00400000)


@dataclass(frozen=True)
class BFloat16(Halves):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "bfloat16"
    largest: ClassVar[float] = 2.0**128 - 2.0**120
    smallest: ClassVar[float] = 2.0**-133
    precision: ClassVar[int] = 8

    def cores(self, jit: Callable):
        """(encode, decode), compiled by `jit`: between the bits of a float32, as uint32, and of a
        bfloat16, as uint32.
        """
        return jit(_encode), jit(_decode)


def _encode(bits):
    size = np.uint32(bits & _MAGNITUDE)
    rounded = np.uint32(size + _HALF + ((size >> _U16) & _U1)) if size < _LARGEST else _LARGEST
    rounded = rounded if size < _INFINITY else size
    rounded = rounded if size <= _INFINITY else np.uint32(size | _QUIET)
    return np.uint32((np.uint32(bits & _SIGN) | rounded) >> _U16)


def _decode(field):
    return np.uint32(field << _U16)
