"""What every framework's tensor is to us: a `Leaf`.

    the user's tensor  --alias-->  leaf.array   shape and strides of the user, carrier dtype
                                      |
               read, inout, target    |         zero-copy if dense, else a staging copy
                                      v
                                   a buffer     1-D, contiguous, native, in logical (C) order

*Dense* means C-contiguous, aligned and in native byte order.  A leaf that is not dense (strided,
reversed, transposed, channels_last, big-endian) is copied into a staging buffer in logical order
and, when it is written, scattered back into its own layout.  So ranks may differ in layout, and
memory between the elements of a view is never touched.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from collectives.dtypes import carrier

Commit = Callable[[], None]
EXPECTED = ("a NumPy array, a PyTorch CPU tensor, a JAX array, a number, "
            "or a list, tuple or dict of them")


class Leaf:
    """One tensor of the user.

    Attributes
    ----------
    owner : the user's object
    dtype : canonical name (see `collectives.dtypes`)
    array : ndarray of the carrier dtype that aliases the user's memory
    immutable : True if a result must be a new value (`empty`), whatever the user passed
    """

    __slots__ = ("array", "dtype", "owner")
    framework = "numpy"
    immutable = False

    def __init__(self, owner, dtype: str, array: np.ndarray):
        self.owner = owner
        self.dtype = dtype
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def writable(self) -> bool:
        """Whether the result can be written into the user's memory."""
        flags = self.array.flags
        return flags.writeable and (flags.c_contiguous or not meets_itself(self.array))

    def value(self):
        """The object that the user sees."""
        return self.owner

    def empty(self, shape: tuple[int, ...] | None = None) -> "Leaf":
        """A new uninitialised leaf of this framework and dtype; `shape` is this leaf's if None."""
        raise NotImplementedError

    def read(self) -> np.ndarray:
        """The elements as a buffer, not to be written; read-only where the user's memory is."""
        array = self.array
        flags = array.flags
        if flags.c_contiguous and flags.aligned and array.dtype.isnative:
            return array if array.ndim == 1 else array.reshape(-1)
        return self._staged()

    def inout(self) -> tuple[np.ndarray, Commit]:
        """A buffer that holds the elements, and what brings it back to the user once reduced.

        Raises
        ------
        ValueError
            If the leaf is not writable.
        """
        array = self.array
        if array.flags.carray and array.dtype.isnative and not self.immutable:
            return (array if array.ndim == 1 else array.reshape(-1)), self._on_write()
        self.check_writable()
        buffer = self._staged()
        return buffer, partial(self.store, buffer)

    def target(self) -> tuple[np.ndarray, Commit]:
        """As `inout`, but the buffer's content is undefined: all of it will be overwritten."""
        array = self.array
        if array.flags.carray and array.dtype.isnative and not self.immutable:
            return (array if array.ndim == 1 else array.reshape(-1)), self._on_write()
        self.check_writable()
        buffer = np.empty(self.size, carrier(self.dtype))
        return buffer, partial(self.store, buffer)

    def load(self, buffer: np.ndarray) -> None:
        """buffer[:] = the elements in logical order."""
        np.copyto(buffer.reshape(self.array.shape), self.array)

    def store(self, buffer: np.ndarray) -> None:
        """The elements in logical order = buffer, in the user's own layout."""
        np.copyto(self.array, buffer.reshape(self.array.shape))
        self._on_write()()

    def check_writable(self) -> None:
        """Raise a ValueError that says why this leaf cannot be written, if it cannot."""
        if self.writable:
            return
        what = f"{self.framework} tensor of dtype {self.dtype} and shape {self.shape}"
        if self.immutable:
            raise ValueError(f"a {what} is immutable: expected one that can be written in place")
        if self.array.flags.writeable:
            raise ValueError(f"elements of this {what} share memory: expected a copy, or out=")
        raise ValueError(f"this {what} is read-only: expected a writable one, or out=")

    def _staged(self) -> np.ndarray:
        buffer = np.empty(self.size, carrier(self.dtype))
        self.load(buffer)
        return buffer

    def _on_write(self) -> Commit:
        """What to call once the memory behind `array` has changed."""
        return nothing


class FreshLeaf(Leaf):
    """A new value whose type the user cannot write: a NumPy buffer until `value` is asked for.

    owner : turns the finished buffer into that type and may keep the memory, so that nothing
    may write to the buffer after `value`.
    """

    __slots__ = ("_value", "framework")

    def __init__(self, framework: str, dtype: str, shape, finish: Callable[[np.ndarray], object]):
        super().__init__(finish, dtype, np.empty(shape, carrier(dtype)))
        self.framework = framework
        self._value = None

    def value(self):
        if self._value is None:
            self._value = self.owner(self.array)
        return self._value

    def empty(self, shape=None) -> Leaf:
        shape = self.shape if shape is None else shape
        return FreshLeaf(self.framework, self.dtype, shape, self.owner)


def nothing() -> None:
    """The commit of a buffer that is the user's memory."""


def meets_itself(array: np.ndarray) -> bool:
    """Whether two elements share memory (stride 0, sliding windows).

    Exact for whatever slicing and transposing make of an array; arbitrary strides may be rejected
    although no element is shared.
    """
    reach = 0  # the bytes spanned by the axes of smaller stride
    for stride, length in sorted((abs(s), n) for s, n in zip(array.strides, array.shape,
                                                             strict=True) if n > 1):
        if stride < reach + array.itemsize:
            return True
        reach += stride * (length - 1)
    return False


def unsupported(x) -> TypeError:
    """The error for an object that is no tensor."""
    kind = type(x)
    return TypeError(f"cannot reduce a {kind.__module__}.{kind.__qualname__}: expected {EXPECTED}")
