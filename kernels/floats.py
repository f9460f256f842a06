"""How the float types are stored, widened to an accumulator, and rounded back with saturation.

    accumulator    float64 if any type involved is float64, else float32
    rounding       to nearest, ties to even; a finite number that would become Inf becomes the
                   largest finite one instead; Inf and NaN stay what they are

A float64 goes to a 16-bit type by way of float32.
"""

import numpy as np
from numba import njit

from collectives.kernels.scalars import from_bfloat16, from_float16, to_bfloat16, to_float16

# Type of the bytes in memory.
STORED = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32,
          "float64": np.float64}

INFINITY = np.float32(np.inf)
LARGEST = np.float32(np.finfo(np.float32).max)
LARGEST_FLOAT16 = np.float32(65504)
LARGEST_BFLOAT16 = np.float32(2.0**128 - 2.0**120)
_LARGEST_64 = np.float64(LARGEST)
_INFINITY_64 = np.float64(np.inf)


def accumulator_of(*names: str) -> str:
    """The type to compute in; empty names do not count."""
    return "float64" if "float64" in names else "float32"


def widener(name: str, acc: str):
    """njit function: a stored number of type `name` as an accumulator."""
    to = STORED[acc]
    read = {"float16": from_float16, "bfloat16": from_bfloat16}.get(name, _same)
    return njit(inline="always")(lambda x: to(read(x)))


def narrower(acc: str, name: str):
    """njit function: an accumulator rounded to type `name`, as stored."""
    if name == acc:
        return _same
    if name == "float64":
        return njit(inline="always")(lambda x: np.float64(x))
    single = to_single(acc)
    write = {"float16": saturated_float16, "bfloat16": saturated_bfloat16}.get(name, _same)
    return njit(inline="always")(lambda x: write(single(x)))


def to_single(acc: str):
    """njit function: an accumulator as float32, saturating."""
    return _same if acc == "float32" else _single


@njit(inline="always")
def _same(x):
    return x


@njit(inline="always")
def _single(x):
    clipped = _LARGEST_64 if x > _LARGEST_64 else x
    clipped = -_LARGEST_64 if clipped < -_LARGEST_64 else clipped
    return np.float32(clipped if abs(x) < _INFINITY_64 else x)


@njit(inline="always")
def clip(x, largest):
    """x, but at most `largest` in magnitude where it is finite (float32)."""
    clipped = largest if x > largest else x
    clipped = -largest if clipped < -largest else clipped
    return clipped if abs(x) < INFINITY else x


@njit(inline="always")
def saturated_float16(x):
    return to_float16(clip(x, LARGEST_FLOAT16))


@njit(inline="always")
def saturated_bfloat16(x):
    return to_bfloat16(clip(x, LARGEST_BFLOAT16))
