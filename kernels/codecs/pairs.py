"""Pairs of value and index: what the wires of sparse codecs have in common.

    float32 values [m], then uint32 indices [m], ascending; little-endian

A value v of the accumulator's type is judged by, and travels as, sent(v): the nearest float32,
which is v itself where the accumulator is float32.  A finite v beyond float32 is clipped to its
largest number; a NaN of any sign and payload is the one quiet NaN 0x7FC00000.
"""

from types import SimpleNamespace

import numpy as np

PAIR_NBYTES = 8
INDICES = 2**32  # how many elements an index can tell apart

_LARGEST = np.float64(np.finfo(np.float32).max)
_NAN = np.float32(np.nan)


def check_count(name: str, n: int) -> None:
    """ValueError if indices are too short for n elements."""
    if not 0 <= n <= INDICES:
        raise ValueError(f"{name}: {n} elements in one wire: expected 0 to {INDICES}")


def rounding_bound(x: np.ndarray) -> np.ndarray:
    """Most that sent(x) is off, per element: float64 loses bits, and what float32 cannot hold."""
    size = np.abs(x.astype(np.float64))
    if x.dtype != np.float64:
        return np.zeros_like(size)
    return size * 2.0**-24 + 2.0**-150 + np.maximum(size - _LARGEST, 0)


def cores(jit) -> SimpleNamespace:
    """The scalar functions, compiled by `jit`."""

    @jit
    def finite(x):
        return x - x == 0

    @jit
    def sent(x):
        if x != x:
            return _NAN
        if x - x == 0:
            x = x if x < _LARGEST else _LARGEST
            x = x if x > -_LARGEST else -_LARGEST
        return np.float32(x)

    return SimpleNamespace(finite=finite, sent=sent)
