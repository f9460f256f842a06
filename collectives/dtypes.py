"""Which element types and which operations there are, and which pairs mean something.

A dtype is a canonical name, the same for every framework.  Its elements travel as the bytes of a
NumPy *carrier* dtype and are reduced in an *accumulator*:

    name                  carrier    accumulator of sum, prod   of mean    of max, min, and, or
    bool                  uint8      bool                       -          bool
    int8 .. int64         itself     itself (wraps as NumPy)    int64      itself
    uint8 .. uint64       itself     itself (wraps as NumPy)    uint64     itself
    float16               itself     float32                    float32    itself
    bfloat16              uint16     float32                    float32    itself
    float32, float64      itself     itself                     itself     itself
    complex64, 128        itself     itself                     itself     -

A bool is one byte that is 0 or 1.  `mean` of integers divides the exact sum by the number of ranks
and truncates once, toward zero: the mean of int8 120 and 100 is 110.
"""

from functools import cache

import numpy as np

NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)
OPS = ("sum", "mean", "max", "min", "prod", "and", "or")

_RECAST = {"bool": np.dtype(np.uint8), "bfloat16": np.dtype(np.uint16)}
_CARRIERS = {name: _RECAST.get(name) or np.dtype(name) for name in NAMES}
_NATIVE = {np.dtype(name): name for name in NAMES if name != "bfloat16"}
_WORDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_BOOL_OPS = {"sum": "or", "max": "or", "or": "or", "prod": "and", "min": "and", "and": "and"}


def name_of(dtype) -> str:
    """The canonical name of a NumPy dtype, of any byte order.

    Raises
    ------
    TypeError
        If we do not reduce such elements; names the dtype and lists those that we do.
    """
    try:
        return _NATIVE[dtype]
    except (KeyError, TypeError):  # byte-swapped, bfloat16, a spelling such as "f4", unsupported
        return _name_of_other(dtype)


def _name_of_other(dtype) -> str:
    if dtype is None:  # which NumPy would take for float64
        raise unsupported(dtype)
    try:
        dtype = np.dtype(dtype)
    except TypeError:  # another framework's dtype object
        raise unsupported(dtype) from None
    if dtype.type.__module__.startswith("ml_dtypes"):
        name = dtype.name
    elif dtype.kind == "b":
        name = "bool"
    else:  # by kind and size, so that np.intc and np.longlong are what they are here
        name = f"{_WORDS.get(dtype.kind, '')}{8 * dtype.itemsize}"
    if name not in _CARRIERS:
        raise unsupported(dtype)
    return name


def unsupported(dtype) -> TypeError:
    """The error for elements of a type that we do not reduce."""
    return TypeError(f"unsupported dtype {dtype}: expected one of {', '.join(NAMES)}")


def carrier(name: str) -> np.dtype:
    """The native NumPy dtype as which the bytes of `name` travel."""
    return _CARRIERS[name]


def carried(array: np.ndarray, name: str) -> np.ndarray:
    """`array`, whose elements are `name`, as the carrier in the byte order it has; no copy."""
    if name in _RECAST:
        return array.view(_RECAST[name].newbyteorder(array.dtype.byteorder))
    return array


def itemsize(name: str) -> int:
    """Bytes per element."""
    return _CARRIERS[name].itemsize


def accumulator(name: str, op: str) -> str:
    """The dtype in which `op` combines elements of `name`; see the module's table."""
    if op in ("sum", "mean", "prod") and name in ("float16", "bfloat16"):
        return "float32"
    if op == "mean" and name.startswith("int"):
        return "int64"
    if op == "mean" and name.startswith("uint"):
        return "uint64"
    return name


@cache
def check_op(name: str, op: str, verb: str = "allreduce") -> str:
    """The operation to run for `op` on `name`: for bool it is `and` or `or`, else `op` itself.

    Raises
    ------
    ValueError
        If `op` is no operation; lists those that are.
    TypeError
        If `op` means nothing for `name`; names both.
    """
    check_known(op, verb)
    allowed = _ops_of(name)
    if op not in allowed:
        raise TypeError(
            f"{verb}: op={op!r} is not defined for {name}: expected one of {', '.join(allowed)}")
    return _BOOL_OPS[op] if name == "bool" else op


def check_known(op, verb: str) -> None:
    """Raise ValueError if `op`, of whatever type, is no operation."""
    if op not in OPS:
        raise ValueError(f"{verb}: op={op!r}: expected one of {', '.join(OPS)}")


def _ops_of(name: str) -> tuple[str, ...]:
    """The operations that mean something for elements of `name`."""
    if name == "bool":
        return tuple(_BOOL_OPS)
    if name.startswith("complex"):
        return ("sum", "mean", "prod")
    return ("sum", "mean", "max", "min", "prod")
