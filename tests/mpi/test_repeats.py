"""Calls that are made again on plain arrays take a short way: it gives what the long way gives."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives as coll
from collectives import schedules
from tests.mpi.reference import RANK, SIZE

COMM = MPI.COMM_WORLD
SHAPE = (SIZE + 1, 30)
LATE_SECONDS = 0.12  # more than a slice, after which a waiting call is taken to Python and back


def inputs(turn, dtype="float32"):
    return [np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype) + (turn + 2) * rank
            for rank in range(SIZE)]


def results(verb, every, root=0):
    if verb == "allgather":
        return np.stack(every)
    if verb == "broadcast":
        return every[root]
    total = sum(every)
    if verb == "reduce_scatter":
        return np.array_split(total, SIZE)[RANK]
    return total if verb == "allreduce" or root == RANK else every[RANK]


@pytest.mark.parametrize("algorithm", ["auto", "ring", "native"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verb", schedules.VERBS)
def test_each_time_on_new_arrays_also_if_a_rank_is_late(verb, late, algorithm):
    algorithm = algorithm if algorithm != "ring" or verb in ("allreduce", "allgather") else "auto"
    root = {"root": SIZE - 1} if verb in schedules.ROOTED else {}
    for turn in range(4):
        every = inputs(turn)
        mine = every[RANK].copy()
        if late and turn % SIZE == RANK:
            time.sleep(LATE_SECONDS)
        got = getattr(coll, verb)(mine, algorithm=algorithm, **root)
        np.testing.assert_array_equal(got, results(verb, every, *root.values()))
        in_place = verb in ("allreduce", "broadcast", "reduce")
        assert (got is mine) == in_place
        if not in_place:
            np.testing.assert_array_equal(mine, every[RANK])


@pytest.mark.parametrize("verb", ["allreduce", "reduce_scatter", "allgather", "reduce"])
def test_out_is_written_and_the_input_is_not(verb):
    for turn in range(3):
        every = inputs(turn)
        mine, want = every[RANK].copy(), results(verb, every)
        mine.flags.writeable = False
        out = np.full_like(want, -1)
        got = getattr(coll, verb)(mine, out=out)
        expected = out if verb != "reduce" or RANK == 0 else mine
        assert got is expected
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(mine, every[RANK])


def test_an_array_that_looks_alike_but_is_not_plain_takes_the_long_way():
    for turn in range(3):
        every = inputs(turn)
        total = sum(every)
        for mine in (every[RANK].copy(), every[RANK].astype(">f4"),
                     np.asfortranarray(every[RANK]), np.repeat(every[RANK], 2, axis=1)[:, ::2]):
            assert coll.allreduce(mine) is mine
            np.testing.assert_array_equal(mine, total)
        fixed = every[RANK].copy()
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            coll.allreduce(fixed)


def test_what_was_wrong_the_first_time_is_wrong_after_a_right_one_too():
    x = inputs(0)[RANK]
    for _ in range(2):
        coll.allreduce(x.copy())
        coll.broadcast(x.copy(), 0)
        with pytest.raises(ValueError, match=r"op=\['sum'\]"):
            coll.allreduce(x.copy(), ["sum"])
        with pytest.raises(ValueError, match=f"expected a rank from 0 to {SIZE - 1}"):
            coll.broadcast(x.copy(), SIZE)
        with pytest.raises(ValueError, match=r"root=0\.0"):
            coll.broadcast(x.copy(), 0.0)
        with pytest.raises(ValueError, match="out"):
            coll.allreduce(x.copy(), out=np.empty(3, np.float32))
    assert len(set(COMM.allgather(coll.allreduce(1)))) == 1


def test_a_pending_call_on_the_same_memory_is_noticed():
    x = inputs(0)[RANK]
    for _ in range(2):
        coll.allreduce(x.copy())
    request = coll.iallreduce(x)
    with pytest.raises(ValueError, match="not yet waited for"):
        coll.allreduce(x)
    request.wait()
    coll.allreduce(x)
