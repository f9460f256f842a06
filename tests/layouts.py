"""Arrays of values all distinct, and the places in a larger memory where such an array may lie."""

import numpy as np

SHAPE = (3, 4)
BASE = (8, 10)

# Each cuts a view of SHAPE out of a base of shape BASE.
LAYOUTS = {
    "contiguous": lambda base: base.reshape(-1)[12:24].reshape(SHAPE),
    "fortran": lambda base: base.reshape(-1)[12:24].reshape(SHAPE[::-1]).T,
    "interior": lambda base: base[2:5, 3:7],
    "strided": lambda base: base[1:7:2, 2:10:2],
    "transposed": lambda base: base.T[2:5, 1:5],
}
REVERSED = {
    "reversed": lambda base: base[::-1, ::-1][1:4, 2:6],
    "reversed_rows": lambda base: base[6:0:-2, 1:5],
    "reversed_transposed": lambda base: base[::-1].T[2:5, 1:5],
}


def numpy_dtype(name: str) -> np.dtype:
    """The native dtype of a canonical name; the caller makes sure that ml_dtypes is there."""
    if name == "bfloat16":
        import ml_dtypes
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def distinct(name: str, start: int = 1, shape=SHAPE) -> np.ndarray:
    """start, start + 1, ... exact in every dtype; a pattern without symmetry for bool."""
    count = int(np.prod(shape))
    numbers = np.arange(start, start + count)
    if name == "bool":
        numbers = (numbers * numbers) % 7 < 2
    if name.startswith("complex"):
        numbers = numbers + 1j * (numbers + 50)
    return numbers.reshape(shape).astype(numpy_dtype(name))


def poisoned(shape, dtype) -> np.ndarray:
    """An array each of whose bytes is 0xAA."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.full(nbytes, 0xAA, np.uint8).view(dtype).reshape(shape)
