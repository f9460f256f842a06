"""Many calls, many communicators: no message meets another's receive, no scratch leaks values."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives as coll
from collectives import dtypes
from tests.layouts import numpy_dtype
from tests.mpi.reference import ALGORITHMS, RANK, SIZE, assert_same

TOTAL = SIZE * (SIZE + 1) // 2


@pytest.fixture
def halves():
    """A communicator of the ranks that are even, or odd."""
    comm = MPI.COMM_WORLD.Split(RANK % 2, RANK)
    with coll.Communicator(comm) as ours:
        yield ours
    comm.Free()


def test_a_mean_on_a_subgroup_divides_by_its_size(halves):
    members = range(RANK % 2, SIZE, 2)
    assert (halves.rank, halves.size) == (RANK // 2, len(members))
    for dtype in ("float32", "float16", "int32"):
        x = np.array([RANK, 4 * RANK, 7], dtype)
        total = np.array([sum(members), 4 * sum(members), 7 * len(members)])
        want = np.trunc(total / len(members)) if dtype == "int32" else total / len(members)
        assert_same(coll.allreduce(x, "mean", comm=halves), want.astype(dtype))


def test_calls_on_several_communicators_in_any_nesting(halves):
    with coll.Communicator(MPI.COMM_WORLD) as twin:
        for n in range(20):
            assert halves.allreduce(1) == halves.size
            assert twin.allreduce(n * (RANK + 1)) == n * TOTAL
            assert coll.allreduce(RANK + 1) == TOTAL
            twin.barrier()
            assert_same(halves.allgather(n), np.full(halves.size, n))


def test_pending_calls_on_several_communicators_end_in_any_order(halves):
    with coll.Communicator() as twin:
        comms = [coll.world(), halves, twin]
        tensors = [np.full(5000 + n, RANK + 1.0 + n) for n in range(12)]
        requests = [comms[n % 3].iallreduce(x, "max") for n, x in enumerate(tensors)]
        order = np.random.default_rng(RANK).permutation(len(requests))  # differs between ranks
        for n in order:
            assert requests[n].wait() is tensors[n]
            last = max(range(RANK % 2, SIZE, 2)) if n % 3 == 1 else SIZE - 1
            assert (tensors[n] == last + 1 + n).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_receives_of_the_user_that_match_anything_get_none_of_our_messages(algorithm):
    user = MPI.COMM_WORLD.Dup()
    buffers = np.zeros((2, 4))
    wild = [comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG)
            for comm, buffer in zip((MPI.COMM_WORLD, user), buffers, strict=True)]
    with coll.Communicator(user) as ours:
        for comm in (ours, coll.world()):
            for count in (1, 5000):
                x = np.full(count, RANK + 1.0)
                assert (comm.allreduce(x, algorithm=algorithm) == TOTAL).all()
            comm.barrier()
    matched = [request.Test() for request in wild]
    MPI.COMM_WORLD.Barrier()  # nobody has sent the messages below before all have looked
    for n, comm in enumerate((MPI.COMM_WORLD, user)):
        comm.Isend(np.full(4, RANK + 10.0 * n + 1), (RANK + 1) % SIZE).Wait()
    MPI.Request.Waitall(wild)
    assert matched == [False, False]
    assert_same(buffers[:, 0], np.array([1.0, 11.0]) + (RANK - 1) % SIZE)
    user.Free()


def draw(random):
    """A call that all ranks draw alike: its tensor, its algorithm and its result."""
    dtype, count = random.choice(dtypes.NAMES), int(random.integers(200_000) ** random.random())
    base = np.arange(count) % 16
    if dtype == "bool":
        return base == RANK, base < SIZE
    like = numpy_dtype(dtype)
    total = base * SIZE + TOTAL - SIZE  # at most 176: exact in every type, or wraps
    return (base + RANK).astype(like), total.astype(like)


def test_calls_of_changing_size_back_to_back_with_one_rank_late_and_scratch_poisoned(channel):
    random, lateness = np.random.default_rng(5), np.random.default_rng(100 + RANK)
    arena = coll.world().lanes.mine().arena
    late = int(random.integers(SIZE))
    for n in range(100):  # by each channel
        x, want = draw(random)
        algorithm = random.choice(ALGORITHMS)
        if late == RANK and lateness.random() < 0.2:
            time.sleep(lateness.random() * 0.005)
        assert_same(coll.allreduce(x, algorithm=algorithm), want, n, algorithm)
        arena.poison()


def test_the_same_with_small_segments(channel, small_segments):
    random = np.random.default_rng(6)
    arena = coll.world().lanes.mine().arena
    for n in range(30):
        x, want = draw(random)
        x, want = x[:3000], want[:3000]
        algorithm = random.choice(ALGORITHMS)
        assert_same(coll.allreduce(x, algorithm=algorithm), want, n, algorithm)
        arena.poison()
