"""NumPy arrays: always in place, never a copy of the user's layout.

Subclasses (np.matrix, np.memmap) are reduced through a plain view and returned as they are.
Masked arrays are refused, since ranks may mask different elements.
"""

import numpy as np

from collectives.adapters import scalar
from collectives.adapters.leaf import Leaf, unsupported
from collectives.dtypes import carried, name_of


class NumpyLeaf(Leaf):
    """See the module docstring."""

    __slots__ = ()

    def __init__(self, owner: np.ndarray):
        array = owner if type(owner) is np.ndarray else np.asarray(owner)
        dtype = name_of(array.dtype)
        self.owner = owner
        self.dtype = dtype
        self.array = carried(array, dtype)

    def empty(self, shape=None) -> Leaf:
        shape = self.shape if shape is None else shape
        return NumpyLeaf(np.empty(shape, self.owner.dtype.newbyteorder("=")))


def adapt(x) -> Leaf:
    """The leaf of an array or of a NumPy scalar."""
    if type(x) is np.ndarray:
        return NumpyLeaf(x)
    if isinstance(x, np.generic):
        return scalar.adapt(x)
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("cannot reduce a masked array: expected x.filled(value) or x.data")
    if isinstance(x, np.ndarray):
        return NumpyLeaf(x)
    raise unsupported(x)
