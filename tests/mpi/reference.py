"""What every rank contributes, and the results that NumPy gets from all contributions.

Contributions are distinct in (rank, index) as far as the type has room, and such that every order
of combining them is exact: small integers in floats, small factors in products.  So results are
compared for equality.  Integers use their whole range and wrap.
"""

from functools import lru_cache

import numpy as np

import collectives as coll
from collectives import dtypes, schedules
from tests.layouts import numpy_dtype

RANK, SIZE = coll.rank(), coll.size()
ALGORITHMS = (*schedules.algorithms("allreduce"), "shared", "native", "auto")
COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 997})
LARGE = 100_003
REDZONE = 64  # bytes

# Integers below these, and sums of SIZE of them in float32, are exact.
_ROOM = {"bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 20, "float64": 1 << 40}
_FACTORS = np.array([1, -1, 2, 3, 0.5, 1.5])
_COMPLEX_FACTORS = np.array([1, 1j, -1, 1 + 1j, 2, 1 - 2j])


def ops_of(dtype: str) -> list[str]:
    """The operations that `dtype` has."""
    return [op for op in dtypes.OPS if _has(dtype, op)]


def _has(dtype, op) -> bool:
    try:
        dtypes.check_op(dtype, op)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def contributions(dtype: str, op: str, count: int) -> np.ndarray:
    """Shape (SIZE, count), read-only: row r is what rank r has."""
    rank, index = np.ogrid[:SIZE, :count]
    rows = _values(dtype, op, index * SIZE + rank).astype(numpy_dtype(dtype))
    rows.flags.writeable = False
    return rows


def _values(dtype: str, op: str, n: np.ndarray) -> np.ndarray:
    mixed = n.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # spread over all bits
    if dtype == "bool":
        rare = (mixed >> np.uint64(40)) % 8 == 0
        return ~rare if op in ("and", "prod", "min") else rare
    if dtype.startswith(("int", "uint")):
        bits = 8 * dtypes.itemsize(dtype)
        mixed = mixed.view(np.int64) if dtype.startswith("int") else mixed
        headroom = 5 if op == "mean" and bits == 64 else 0  # the sum of a mean is exact
        return mixed >> mixed.dtype.type(64 - bits + headroom)
    if op == "prod":
        factors = _COMPLEX_FACTORS if dtype.startswith("complex") else _FACTORS
        return factors[(mixed >> np.uint64(40)) % len(factors)]
    if dtype.startswith("complex"):
        return (n % (1 << 20) - (1 << 19)) + 1j * ((3 * n + 1) % (1 << 20))
    return n % _ROOM[dtype] - _ROOM[dtype] // 2


@lru_cache(maxsize=256)
def combined(dtype: str, op: str, count: int) -> np.ndarray:
    """Shape (count,), read-only: the exact result, rounded once."""
    result = combine(contributions(dtype, op, count), dtype, op)
    result.flags.writeable = False
    return result


def combine(rows: np.ndarray, dtype: str, op: str) -> np.ndarray:
    """`op` over axis 0, however many rows there are."""
    if dtype == "bool":
        return rows.all(axis=0) if op in ("and", "prod", "min") else rows.any(axis=0)
    like, size = rows.dtype, len(rows)
    wide = rows.astype(np.float32) if dtype in ("float16", "bfloat16") else rows
    if op in ("max", "min"):
        return {"max": np.maximum, "min": np.minimum}[op].reduce(wide).astype(like)
    if op == "prod":
        return wide.prod(axis=0, dtype=wide.dtype).astype(like)
    if op == "sum":
        return wide.sum(axis=0, dtype=wide.dtype).astype(like)
    if like.kind in "iu":
        total = wide.sum(axis=0, dtype=np.uint64 if like.kind == "u" else np.int64)
        negative = total < 0
        return np.where(negative, -(np.abs(total) // size), total // size).astype(like)
    total = wide.sum(axis=0, dtype=wide.dtype)
    real = total.real.dtype.type
    return (total.view(real) / real(size)).view(total.dtype).astype(like)


class Guarded:
    """An array between redzones, so that a write beside it is seen."""

    def __init__(self, values=None, *, shape=None, dtype=None):
        shape = np.shape(values) if shape is None else shape
        dtype = values.dtype if dtype is None else np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        self._memory = np.full(nbytes + 2 * REDZONE, 0xAA, np.uint8)
        self.array = self._memory[REDZONE:REDZONE + nbytes].view(dtype).reshape(shape)
        if values is not None:
            self.array[...] = values

    def check(self) -> None:
        """Nothing was written beside the array."""
        assert (self._memory[:REDZONE] == 0xAA).all(), "wrote before the array"
        assert (self._memory[-REDZONE:] == 0xAA).all(), "wrote behind the array"


def assert_same(got, want, *where) -> None:
    """Same type, shape and values."""
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, *where)
    if not np.array_equal(got, want):
        at = tuple(np.argwhere(got != want)[0])
        raise AssertionError(f"rank {RANK} of {SIZE}, {where}: at {at} got {got[at]!r}, want "
                             f"{want[at]!r}; {np.count_nonzero(got != want)} of {got.size} differ")


def same_on_all_ranks(*arrays) -> bool:
    """True on every rank if the bytes of the arrays are equal on all ranks."""
    from mpi4py import MPI
    everyone = MPI.COMM_WORLD.allgather([x.tobytes() for x in arrays])
    return all(mine == everyone[0] for mine in everyone)
