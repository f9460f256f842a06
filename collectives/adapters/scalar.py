"""Numbers: Python's (int64, float64, complex128, bool) and NumPy's scalars.

The result is a new number of the same type, or a NumPy array where a shape is asked for
(the allgather of a number).  A Python int is carried as int64 and its reduction wraps as such.
"""

import numpy as np

from collectives.adapters.leaf import FreshLeaf, Leaf
from collectives.dtypes import carried, name_of

_INT64 = np.iinfo(np.int64)


class ScalarLeaf(Leaf):
    """See the module docstring; `like` is the NumPy dtype of a result."""

    __slots__ = ("like",)
    framework = "scalar"
    immutable = True

    def __init__(self, owner, array: np.ndarray):
        dtype = name_of(array.dtype)
        super().__init__(owner, dtype, carried(array, dtype))
        self.like = array.dtype

    @property
    def writable(self) -> bool:
        return False

    def empty(self, shape=None) -> Leaf:
        like, number = self.like, isinstance(self.owner, np.generic)
        if shape is not None:
            finish = _finish_array
        else:
            finish = _finish_generic if number else _finish_number
        return FreshLeaf("scalar", self.dtype, shape or (), lambda array: finish(array.view(like)))


def _finish_array(array: np.ndarray) -> np.ndarray:
    return array


def _finish_generic(array: np.ndarray) -> np.generic:
    return array[()]


def _finish_number(array: np.ndarray) -> bool | int | float | complex:
    return array.item()


def adapt(x) -> Leaf:
    """The leaf of a number.

    Raises
    ------
    OverflowError
        If a Python int does not fit int64.
    """
    if isinstance(x, np.generic):
        return ScalarLeaf(x, np.asarray(x))
    if isinstance(x, int) and not _INT64.min <= x <= _INT64.max:
        raise OverflowError(f"{x} does not fit int64: expected {_INT64.min} to {_INT64.max}")
    kind = next(k for k in (bool, int, float, complex) if isinstance(x, k))
    return ScalarLeaf(x, np.array(kind(x), np.int64 if kind is int else kind))
