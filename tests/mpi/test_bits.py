"""Results to the last bit: equal on all ranks, and what they may depend on."""

import numpy as np
import pytest

import collectives as coll
from collectives import schedules
from tests.layouts import numpy_dtype
from tests.mpi.reference import ALGORITHMS, RANK, SIZE, assert_same, same_on_all_ranks

OURS = schedules.algorithms("allreduce")
FLOATS = ["float16", "bfloat16", "float32", "float64"]
# All of these combine an element in an order that does not depend on where it is.
ELEMENTWISE = ["recursive_doubling", "binomial_tree"]


def noise(count, rank=RANK):
    """Sums of these round, so that the order of additions shows."""
    return np.random.default_rng(rank).standard_normal(count)


def quiet_nans(dtype, count, rank=RANK):
    """NaN with payloads that tell rank and index."""
    unsigned = np.dtype(f"u{numpy_dtype(dtype).itemsize}")
    nan = np.array(np.nan, numpy_dtype(dtype)).view(unsigned)
    return (nan | (np.arange(count) % 8 * SIZE + rank).astype(unsigned)).view(numpy_dtype(dtype))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
def test_all_ranks_round_alike(dtype, algorithm, small_segments):
    ops = ["sum", "mean", "prod"] + ["max", "min"] * (not dtype.startswith("complex"))
    x = noise(1999).astype(numpy_dtype(dtype))
    assert same_on_all_ranks(*(coll.allreduce(x.copy(), op, algorithm=algorithm) for op in ops))


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_all_ranks_get_the_same_nan_and_the_same_zero(dtype, algorithm):
    index = np.arange(997)
    nans = quiet_nans(dtype, index.size)
    some = np.where(index % SIZE == RANK, nans, noise(index.size).astype(nans.dtype))
    zeros = np.where((index >> RANK) & 1, -0.0, 0.0).astype(nans.dtype)
    for op in ("sum", "mean", "prod", "max", "min"):
        assert same_on_all_ranks(*(coll.allreduce(x.copy(), op, algorithm=algorithm)
                                   for x in (nans, some, zeros)))


@pytest.mark.parametrize("algorithm", ["native", "auto"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_so_do_maxima_and_minima_of_the_mpi_library(op, algorithm):
    for dtype in FLOATS:
        x = np.where(np.arange(64) % 5 == RANK % 5, -0.0, 0.0).astype(numpy_dtype(dtype))
        x[::3] = quiet_nans(dtype, len(x[::3]))
        assert same_on_all_ranks(coll.allreduce(x, op, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_on_any_one_rank_is_a_nan_on_all(dtype, algorithm):
    for op in ("max", "min", "sum"):
        for where in range(SIZE):
            x = np.full(2 * SIZE + 1, RANK + 1, numpy_dtype(dtype))
            if where == RANK:
                x[SIZE] = np.nan
            total = {"max": SIZE, "min": 1, "sum": SIZE * (SIZE + 1) // 2}[op]
            got = coll.allreduce(x, op, algorithm=algorithm).astype(np.float64)
            want = np.full(got.size, total, np.float64)
            want[SIZE] = np.nan
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_infinities(algorithm):
    x = np.array([np.inf, -np.inf, np.inf if RANK == 0 else 1.0, 2.0])
    for op, third in (("sum", np.inf), ("max", np.inf), ("min", np.inf if SIZE == 1 else 1.0)):
        got = coll.allreduce(x.copy(), op, algorithm=algorithm)
        assert got[0] == np.inf and got[1] == -np.inf and got[2] == third and got[3] >= 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_sum_of_negative_zeros_is_one(algorithm):
    got = coll.allreduce(np.full(SIZE + 1, -0.0), algorithm=algorithm)
    assert not got.any() and np.signbit(got).all()


@pytest.mark.parametrize("algorithm", ELEMENTWISE)
@pytest.mark.parametrize("segment", [256, 1 << 18])
def test_a_row_has_the_same_bits_in_a_longer_tensor(algorithm, segment, set_segment):
    set_segment(segment)
    rows = noise(2048 * 4).astype(np.float32).reshape(2048, 4)
    whole = coll.allreduce(rows.copy(), algorithm=algorithm)
    for n in (1, 3, 1664):
        part = coll.allreduce(rows[:n].copy(), algorithm=algorithm)
        assert_same(part.view(np.uint32), whole[:n].view(np.uint32), n)


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ten_repeats_have_the_same_bits_in_place_and_into_out(dtype, algorithm):
    x = noise(5000).astype(dtype)
    first = coll.allreduce(x.copy(), "mean", algorithm=algorithm).tobytes()
    for _ in range(5):
        assert coll.allreduce(x.copy(), "mean", algorithm=algorithm).tobytes() == first
        out = np.empty_like(x)
        assert coll.allreduce(x, "mean", out=out, algorithm=algorithm).tobytes() == first


@pytest.mark.parametrize("algorithm", ELEMENTWISE)
def test_the_order_of_additions_of_small_messages_is_a_tree(algorithm):
    # ((0+1)+(2+3))+((4+5)+(6+7)), as the docstrings say, where all ranks take part in it.
    if SIZE & (SIZE - 1):
        pytest.skip("for powers of two")
    level = [noise(SIZE + 1, rank).astype(np.float32) for rank in range(SIZE)]
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=True)]
    got = coll.allreduce(noise(SIZE + 1).astype(np.float32), algorithm=algorithm)
    assert_same(got.view(np.uint32), level[0].view(np.uint32))
