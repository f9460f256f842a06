"""allreduce equals NumPy exactly: every algorithm, dtype, op and count, in place and into out."""

import pytest

import collectives as coll
from collectives import dtypes, schedules
from collectives.plan import Signature, lower
from collectives.tuning import DEFAULT_SEGMENT
from tests.everything import EVERYTHING
from tests.mpi.reference import (
    ALGORITHMS,
    COUNTS,
    LARGE,
    RANK,
    SIZE,
    Guarded,
    assert_same,
    combined,
    contributions,
    ops_of,
)

OURS = schedules.algorithms("allreduce")
SOME_DTYPES = ["float32", "bfloat16", "int8", "complex64"]


def check(dtype, op, count, algorithm, in_place):
    """Out of place, the input is read-only and stays as it is."""
    given, want = contributions(dtype, op, count)[RANK], combined(dtype, op, count)
    where = dtype, op, count, algorithm, "in place" if in_place else "into out"
    x = Guarded(given)
    if in_place:
        assert coll.allreduce(x.array, op, algorithm=algorithm) is x.array
        assert_same(x.array, want, *where)
        x.check()
        return
    out = Guarded(shape=given.shape, dtype=given.dtype)
    x.array.flags.writeable = False
    assert coll.allreduce(x.array, op, out=out.array, algorithm=algorithm) is out.array
    assert_same(out.array, want, *where)
    assert_same(x.array, given, *where, "input")
    out.check()
    x.check()


def check_all(dtype, ops, counts, algorithm):
    """Every op at every count; both forms of each, in turn."""
    for i, op in enumerate(ops):
        for j, count in enumerate(counts):
            check(dtype, op, count, algorithm, in_place=(i + j) % 2 == 0)


def combinations():
    """(dtype, algorithm).  Many ranks on few cores take long; counts matter there, dtypes less."""
    for dtype in dtypes.NAMES:
        every = SIZE <= 4 or EVERYTHING or dtype in SOME_DTYPES
        yield from ((dtype, name) for name in (ALGORITHMS if every else ["ring", "shared"]))


@pytest.mark.parametrize("dtype, algorithm", combinations())
def test_every_op_at_every_count(dtype, algorithm):
    every = SIZE <= 4 or EVERYTHING or dtype in SOME_DTYPES
    check_all(dtype, ops_of(dtype), COUNTS if every else [1, SIZE + 1, 997], algorithm)


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_a_large_prime_count(dtype, algorithm, channel):
    check_all(dtype, ["sum", "mean"], [LARGE], algorithm)


@pytest.mark.parametrize("algorithm", ["native", "auto"])
@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_a_large_prime_count_by_other_means(dtype, algorithm):
    check_all(dtype, ["sum", "mean"], [LARGE], algorithm)


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_many_blocks_in_flight(dtype, algorithm, channel, small_segments):
    check_all(dtype, ["sum", "mean"], [997, 5003], algorithm)


@pytest.mark.parametrize("algorithm", OURS)
def test_what_small_and_default_segments_mean(algorithm):
    def blocks(count, segment):
        plan = lower(Signature("allreduce", algorithm, RANK, SIZE, 0, (count,), "float32", "sum",
                               True, segment))
        return plan.first_block[-1], plan.depth
    assert blocks(997, DEFAULT_SEGMENT) == (1, 1)
    number, depth = blocks(5003, 256)
    assert number > depth > 1


@pytest.mark.parametrize("algorithm", OURS)
def test_every_count_up_to_a_few_times_the_ranks(algorithm):
    check_all("float32", ["sum"], range(2 * SIZE + 4), algorithm)
    check_all("int16", ["mean"], range(2 * SIZE + 4), algorithm)
