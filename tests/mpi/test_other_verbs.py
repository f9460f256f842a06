"""reduce_scatter, allgather, broadcast, reduce and barrier: every algorithm, root and odd shape."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives as coll
from collectives import dtypes, schedules
from tests.mpi.reference import (
    RANK,
    SIZE,
    Guarded,
    assert_same,
    combined,
    contributions,
    ops_of,
)

SHAPES = [(), (0,), (1,), (SIZE,), (0, 3), (SIZE, 0), (SIZE - 1, 3), (SIZE + 1, 2),
          (2 * SIZE + 3, 1, 5), (997,)]
SOME_DTYPES = ["float32", "bfloat16", "complex64"] if SIZE <= 4 else ["float32", "complex64"]


def algorithms(verb):
    return (*schedules.algorithms(verb), "shared", "native", "auto")


def case(dtype, op, shape):
    """This rank's tensor, all tensors, and their combination."""
    count = int(np.prod(shape))
    rows = contributions(dtype, op, count).reshape(SIZE, *shape)
    return rows[RANK], rows, combined(dtype, op, count).reshape(shape)


def reduce_scatter(dtype, op, shape, algorithm):
    mine, _, total = case(dtype, op, shape)
    want = np.array_split(np.atleast_1d(total), SIZE)[RANK]
    where = dtype, op, shape, algorithm
    assert_same(coll.reduce_scatter(mine, op, algorithm=algorithm), want, *where)
    x, out = Guarded(mine), Guarded(shape=want.shape, dtype=want.dtype)
    assert coll.reduce_scatter(x.array, op, out=out.array, algorithm=algorithm) is out.array
    assert_same(out.array, want, *where, "into out")
    assert_same(x.array, mine, *where, "input")
    out.check()


def allgather(dtype, op, shape, algorithm):
    mine, rows, _ = case(dtype, op, shape)
    where = dtype, shape, algorithm
    assert_same(coll.allgather(mine, algorithm=algorithm), rows, *where)
    out = Guarded(shape=rows.shape, dtype=rows.dtype)
    assert coll.allgather(mine, out=out.array, algorithm=algorithm) is out.array
    assert_same(out.array, rows, *where, "into out")
    out.check()


def broadcast(dtype, op, shape, algorithm, root=0):
    mine, rows, _ = case(dtype, op, shape)
    x = Guarded(mine)
    assert coll.broadcast(x.array, root, algorithm=algorithm) is x.array
    assert_same(x.array, rows[root], dtype, shape, algorithm, root)
    x.check()


def reduce(dtype, op, shape, algorithm, root=0):
    mine, _, total = case(dtype, op, shape)
    where = dtype, op, shape, algorithm, root
    x = Guarded(mine)
    assert coll.reduce(x.array, op, root, algorithm=algorithm) is x.array
    assert_same(x.array, total if root == RANK else mine, *where)
    x.check()
    x, out = Guarded(mine), Guarded(np.full_like(mine, 1))
    got = coll.reduce(x.array, op, root, out=out.array, algorithm=algorithm)
    assert got is (out.array if root == RANK else x.array)
    assert_same(x.array, mine, *where, "input")
    assert_same(out.array, total if root == RANK else np.full_like(mine, 1), *where, "out")


VERBS = {"reduce_scatter": reduce_scatter, "allgather": allgather, "broadcast": broadcast,
         "reduce": reduce}
EVERY = [(verb, algorithm) for verb in VERBS for algorithm in algorithms(verb)]
OURS = [(verb, algorithm) for verb in VERBS for algorithm in schedules.algorithms(verb)]
ROOTED = [(verb, algorithm) for verb in schedules.ROOTED for algorithm in algorithms(verb)]


@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_every_shape(verb, algorithm):
    for dtype in SOME_DTYPES:
        for shape in SHAPES:
            VERBS[verb](dtype, "sum", shape, algorithm)


@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_every_dtype_and_op(verb, algorithm):
    for dtype in dtypes.NAMES:
        for op in ops_of(dtype) if "reduce" in verb else ["sum"]:
            VERBS[verb](dtype, op, (2 * SIZE + 1, 7), algorithm)


@pytest.mark.parametrize("verb, algorithm", ROOTED)
def test_every_root(verb, algorithm):
    for root in range(SIZE):
        for shape in ((), (SIZE + 1,), (997,)):
            VERBS[verb]("float32", "sum", shape, algorithm, root)
            VERBS[verb]("float16", "mean", shape, algorithm, root)


@pytest.mark.parametrize("verb, algorithm", OURS)
def test_many_blocks_in_flight(verb, algorithm, channel, small_segments):
    roots = [(0,), (SIZE - 1,)] if verb in schedules.ROOTED else [()]
    for dtype in SOME_DTYPES:
        for shape in ((997,), (SIZE + 2, 301)):
            for root in roots:
                VERBS[verb](dtype, "mean", shape, algorithm, *root)


@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_a_large_prime_count(verb, algorithm):
    VERBS[verb]("float32", "sum", (100_003,), algorithm)
    VERBS[verb]("bfloat16", "mean", (10_007, 3), algorithm)


@pytest.mark.parametrize("verb", ["broadcast", "allgather"])
def test_values_that_are_only_moved_keep_their_bits(verb):
    # Signalling and quiet NaN payloads, signed zeros, subnormals.
    for dtype in ("float16", "float32", "float64"):
        bits = np.frombuffer(np.random.default_rng(RANK).bytes(4096), f"u{dtypes.itemsize(dtype)}")
        every = MPI.COMM_WORLD.allgather(bits)
        for algorithm in algorithms(verb):
            got = getattr(coll, verb)(bits.view(dtype).copy(), algorithm=algorithm)
            want = every[0] if verb == "broadcast" else np.stack(every)
            assert_same(got.view(bits.dtype), want, dtype, algorithm)


def test_barrier_ends_after_the_last_rank_has_entered():
    for late in range(SIZE):
        if late == RANK:
            time.sleep(0.02)
        entered = time.time()  # ranks of these tests share a host, hence a clock
        coll.barrier()
        left = time.time()
        assert min(MPI.COMM_WORLD.allgather(left)) >= max(MPI.COMM_WORLD.allgather(entered))
