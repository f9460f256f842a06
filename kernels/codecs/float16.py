"""IEEE half precision: two bytes per element.

    offset    content    dtype      shape
    0         values     float16    (n,)     little-endian

Rounded to nearest, ties to even.  Finite values beyond 65504 become +-65504, and the rest is
residual; Inf and NaN stay what they are.

Error: 2^-11 |x|, or 2^-25 below 2^-14, or |x| - 65504.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from collectives.kernels.dense_layout import Halves

_U1, _U13, _U15, _U16, _U23 = (np.uint32(k) for k in (1, 13, 15, 16, 23))
_MAGNITUDE, _INFINITY, _QUIET = (np.uint32(k) for k in (0x7FFFFFFF, 0x7F800000, 0x7E00))
_LARGEST, _NORMAL = np.uint32(0x477FE000), np.uint32(0x38800000)  # 65504 and 2^-14, as float32


@dataclass(frozen=True)
class Float16(Halves):
    """See the module docstring for the wire layout and the error bound."""

    name: ClassVar[str] = "float16"
    largest: ClassVar[float] = 65504.0
    smallest: ClassVar[float] = 2.0**-24
    precision: ClassVar[int] = 11

    def cores(self, jit: Callable):
        """(encode, decode), compiled by `jit`: between the bits of a float32, as uint32, and of a
        half, as uint32.  In integers alone; a host does the same in one instruction.
        """
        return jit(_encode), jit(_decode)


def _encode(bits):
    sign = np.uint32((bits >> _U16) & np.uint32(0x8000))
    size = np.uint32(bits & _MAGNITUDE)
    if size > _INFINITY:  # NaN: the upper bits of its payload, made quiet
        return np.uint32(sign | _QUIET | ((size >> _U13) & np.uint32(0x3FF)))
    if size == _INFINITY:
        return np.uint32(sign | np.uint32(0x7C00))
    if size >= _LARGEST:
        return np.uint32(sign | np.uint32(0x7BFF))
    if size >= _NORMAL:  # rebias the exponent by 112 and round away 13 bits
        even = (size >> _U13) & _U1
        return np.uint32(sign | ((size - np.uint32(0x38000000) + np.uint32(0xFFF) + even) >> _U13))
    shift = np.uint32(126) - (size >> _U23)  # the significand counts units of 2^-24 then
    if shift > np.uint32(24):
        return sign
    significand = np.uint32((size & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
    kept = np.uint32(significand >> shift)
    rest = np.uint32(significand - np.uint32(kept << shift))
    half = np.uint32(_U1 << np.uint32(shift - _U1))
    up = rest > half or (rest == half and (kept & _U1) == _U1)
    return np.uint32(sign | (kept + _U1 if up else kept))


def _decode(field):
    sign = np.uint32((field & np.uint32(0x8000)) << _U16)
    exponent = np.uint32((field >> np.uint32(10)) & np.uint32(0x1F))
    fraction = np.uint32(field & np.uint32(0x3FF))
    if exponent == np.uint32(0x1F):
        return np.uint32(sign | _INFINITY | (fraction << _U13))
    if exponent > np.uint32(0):
        return np.uint32(sign | ((exponent + np.uint32(112)) << _U23) | (fraction << _U13))
    if fraction == np.uint32(0):
        return sign
    exponent = np.uint32(113)
    while fraction < np.uint32(0x400):
        fraction = np.uint32(fraction << _U1)
        exponent = np.uint32(exponent - _U1)
    return np.uint32(sign | (exponent << _U23) | ((fraction & np.uint32(0x3FF)) << _U13))
