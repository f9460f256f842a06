"""Arrays of carrier dtypes as the accumulators of sums, and back."""

import numpy as np

from collectives.dtypes import accumulator, carrier


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x`, whose elements are `dtype`, in the accumulator's type; `x` itself if that is its own."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(carrier(accumulator(dtype, "sum")), copy=False)


def narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """Accumulators rounded to `dtype`, to nearest even; `x` itself if they are of that type."""
    if dtype == "bfloat16":
        bits = x.view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (np.where(np.isnan(x), bits | 0x00400000, rounded) >> 16).astype(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(carrier(dtype), copy=False)
