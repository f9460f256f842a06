"""User tensors as flat buffers: `as_leaf`, whatever the framework.

The framework is found from the module that defines the object's type, so a framework is never
imported unless the user has one of its tensors in hand.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module

import numpy as np

from collectives.adapters import scalar
from collectives.adapters.leaf import Leaf, unsupported

# Root module of the tensor's type, or of one of its bases -> our module that adapts it.
_ADAPTERS = {
    "numpy": "collectives.adapters.ndarray",
    "torch": "collectives.adapters.torch_tensor",
    "jax": "collectives.adapters.jax_array",
    "jaxlib": "collectives.adapters.jax_array",
}
_EXACT_WORK = 10_000  # candidates that np.shares_memory may try; beyond it we assume the worst


def as_leaf(x) -> Leaf:
    """The leaf of one tensor or number (see `collectives.adapters.leaf`).

    Raises
    ------
    TypeError
        If `x` is no tensor, is on a device, or has elements that we do not reduce.
    OverflowError
        If `x` is a Python int that does not fit int64.
    """
    return _adapter(type(x))(x)


@lru_cache(maxsize=256)
def _adapter(kind: type) -> Callable[[object], Leaf]:
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if "cupy" in roots:
        return _refuse_cupy
    for root in roots:
        if root in _ADAPTERS:
            return import_module(_ADAPTERS[root]).adapt
    return scalar.adapt if issubclass(kind, (int, float, complex)) else _refuse


def _refuse_cupy(x):
    raise TypeError("cannot reduce a CuPy array: it needs the GPU executor, not in this version; "
                    "expected cupy.asnumpy(x)")


def _refuse(x):
    raise unsupported(x)


def overlap(a: Leaf, b: Leaf) -> str:
    """How the memory of two leaves meets: "none", "same" (equal element by element) or "partial".

    Where the exact answer would take long, "partial" may be said of memory that only interleaves.
    """
    a, b = a.array, b.array
    if not np.may_share_memory(a, b):
        return "none"
    if _layout(a) == _layout(b):
        return "same"
    try:
        return "partial" if np.shares_memory(a, b, max_work=_EXACT_WORK) else "none"
    except np.exceptions.TooHardError:
        return "partial"


def _layout(array: np.ndarray) -> tuple:
    """Address and, for the axes that have any, strides."""
    strides = [s for s, n in zip(array.strides, array.shape, strict=True) if n > 1]
    return array.__array_interface__["data"][0], array.dtype, array.shape, strides


def check_out(given: Leaf, out: Leaf, shape: tuple[int, ...]) -> None:
    """Check that `out` can take a result of shape `shape` and of the dtype of `given`.

    Raises
    ------
    TypeError
        If dtypes differ.
    ValueError
        If shapes differ, `out` cannot be written, or it overlaps `given` other than exactly.
    """
    if out.dtype != given.dtype:
        raise TypeError(f"out has dtype {out.dtype}: expected {given.dtype}, as the input")
    if out.shape != tuple(shape):
        raise ValueError(f"out has shape {out.shape}: expected {tuple(shape)}")
    try:
        out.check_writable()
    except ValueError as error:
        raise ValueError(f"out: {error}") from None
    if overlap(given, out) == "partial":
        raise ValueError("out overlaps the input: expected the input itself or separate memory")


def check_disjoint(leaves: Sequence[Leaf]) -> None:
    """Check that no two leaves share memory.

    Raises
    ------
    ValueError
        If two do, as when a list holds one array twice; gives their positions.
    """
    spans = sorted((*_span(leaf.array), n) for n, leaf in enumerate(leaves) if leaf.size)
    open_spans: list[tuple[int, int]] = []  # (end, n) of those that may reach the current start
    for start, end, n in spans:
        open_spans = [(e, m) for e, m in open_spans if e > start]
        for _, m in open_spans:
            if overlap(leaves[m], leaves[n]) != "none":
                raise ValueError(f"tensors {min(m, n)} and {max(m, n)} of the container share "
                                 "memory: expected separate memory for each result")
        open_spans.append((end, n))


def _span(array: np.ndarray) -> tuple[int, int]:
    """First byte and one past the last byte of a non-empty array."""
    address = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return address, address + array.nbytes
    reach = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True)]
    return (address + sum(r for r in reach if r < 0),
            address + sum(r for r in reach if r > 0) + array.itemsize)
