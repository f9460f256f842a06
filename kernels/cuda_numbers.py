"""How device code widens stored numbers, rounds them back, and divides: as `floats` on the host.

The 16-bit types are converted by the integer cores of their codecs, which saturate; NaN keeps its
payload so, as on the host and unlike in a GPU's own conversion.

Factories are cached, so that kernels share functions: each is compiled once in a process.
"""

from functools import cache

import numpy as np

from collectives.kernels.codecs.bfloat16 import BFloat16
from collectives.kernels.codecs.float16 import Float16
from collectives.kernels.cuda_memory import (
    bits_float,
    double_bits,
    float_bits,
    load,
    scalar_function,
)

STORED = {"": np.uint8, "float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32,
          "float64": np.float64}

_LARGEST = np.float64(np.finfo(np.float32).max)
_INFINITY = np.float64(np.inf)
_SIZE, _INF_BITS = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_SIZE_64, _INF_BITS_64 = np.uint64(0x7FFFFFFFFFFFFFFF), np.uint64(0x7FF0000000000000)

_HALVES = {codec.name: codec.cores(scalar_function) for codec in (Float16(), BFloat16())}


@cache
def half_cores(name: str):
    """(to_half, from_half) of float16 or bfloat16: float32 to uint16, saturating, and back."""
    encode, decode = _HALVES[name]

    @scalar_function
    def to_half(x):
        return np.uint16(encode(float_bits(x)))

    @scalar_function
    def from_half(half):
        return bits_float(decode(np.uint32(half)))

    return to_half, from_half


@cache
def widener(name: str, acc: str):
    """Device function: a stored number of type `name` as an accumulator."""
    to = STORED[acc]
    if name in _HALVES:
        from_half = half_cores(name)[1]
        return scalar_function(lambda x: to(from_half(x)))
    return scalar_function(lambda x: to(x))


@cache
def narrower(acc: str, name: str):
    """Device function: an accumulator rounded to type `name`, as stored; finite stays finite."""
    if name == "float64":
        return scalar_function(lambda x: np.float64(x))
    single = to_single(acc)
    if name in _HALVES:
        to_half = half_cores(name)[0]
        return scalar_function(lambda x: to_half(single(x)))
    return single


@cache
def to_single(acc: str):
    """Device function: an accumulator as float32, saturating."""
    return _single if acc == "float64" else scalar_function(lambda x: np.float32(x))


@scalar_function
def _single(x):
    clipped = _LARGEST if x > _LARGEST else x
    clipped = -_LARGEST if clipped < -_LARGEST else clipped
    return np.float32(clipped if abs(x) < _INFINITY else x)


@scalar_function
def size_bits(x):
    """The bit pattern of |x|, x float32: orders like |x|, Inf above numbers, NaN above Inf."""
    return np.uint32(float_bits(x) & _SIZE)


@scalar_function
def is_number(size):
    """True if `size_bits` are those of a finite number."""
    return size < _INF_BITS


@cache
def finite_of(acc: str):
    """Device function: True if an accumulator is neither NaN nor Inf."""
    if acc == "float64":
        return scalar_function(lambda x: np.uint64(double_bits(x) & _SIZE_64) < _INF_BITS_64)
    return scalar_function(lambda x: is_number(size_bits(x)))


@cache
def remainder(acc: str):
    """Device function (v, result, divisor): v - divisor * result; the product is clipped to finite.

    result may be v / divisor rounded up.
    """
    number, largest = STORED[acc], STORED[acc](np.finfo(acc).max)

    @scalar_function
    def rest(v, result, divisor):
        product = number(number(divisor) * result)
        product = largest if product > largest else product
        product = -largest if product < -largest else product
        return number(v - product)

    return rest


@cache
def unchanged_of(acc: str):
    """Device function (residual, i): what it was, and 0 for -0, as on the host (see `floats`)."""
    number = STORED[acc]
    return scalar_function(lambda residual, i: number(load(residual, i, number) + number(0)))
