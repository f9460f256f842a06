"""What the bench gives to each collective, what it wants back, and what it rejects."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.mpirun import run_script

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # benches are scripts, not a package

import arguments
import measure
from buffers import Pool
from collective import PLACES, POISON, ROOT, exchange, whole

BENCH = Path(__file__).parents[1] / "bench"
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(BENCH)]))}
SIZE, COUNT = 3, 12
CASES = [(name, in_place) for name, places in PLACES.items() for in_place in places]


def exchanges(collective, in_place, op="sum"):
    """What every rank gives and wants."""
    return [exchange(collective, op, np.dtype(np.float32), rank, SIZE, COUNT, in_place)
            for rank in range(SIZE)]


def given(parts):
    return np.stack([part.given for part in parts])


# Data

def test_a_reduction_is_wanted_on_every_rank():
    for part in (parts := exchanges("allreduce", False)):
        assert np.array_equal(part.wanted, given(parts).sum(axis=0))


def test_a_chunk_of_the_reduction_is_wanted_on_its_rank():
    parts = exchanges("reduce_scatter", False, "max")
    wanted = np.concatenate([part.wanted for part in parts])
    assert np.array_equal(wanted, given(parts).max(axis=0))
    assert {part.wanted.size for part in parts} == {COUNT // SIZE}


def test_the_chunks_of_all_are_wanted_on_every_rank():
    for part in (parts := exchanges("allgather", False)):
        assert np.array_equal(part.wanted, given(parts).ravel())


def test_the_root_s_tensor_is_wanted_on_every_rank():
    for part in (parts := exchanges("broadcast", True)):
        assert np.array_equal(part.wanted, parts[ROOT].given)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_root_wants_the_reduction_and_the_others_that_nothing_is_written(in_place):
    root, *others = parts = exchanges("reduce", in_place)
    assert np.array_equal(root.wanted, given(parts).sum(axis=0))
    for part in others:
        assert np.array_equal(part.wanted, part.given) if in_place else \
            set(part.wanted.tobytes()) == {POISON}


@pytest.mark.parametrize("collective, count, elements", [
    ("allreduce", 7, 7), ("broadcast", 1, 1), ("allgather", 7, 6), ("reduce_scatter", 1, 3)])
def test_sizes_are_those_of_the_whole_array_which_ranks_share_equally(collective, count, elements):
    assert whole(collective, count, SIZE) == elements


def test_small_sizes_that_become_one_are_measured_once():
    args = arguments.parse(["--collective", "allgather", "-b", "4", "-e", "64", "-f", "2"])
    assert measure.counts(args, 8) == [8, 16]


# Checks: of each collective, a right result passes and wrong ones do not.

def pool_of(collective, in_place, rank):
    part = exchanges(collective, in_place)[rank]
    return part, Pool(part, [0.0], 0, slots=1)


@pytest.mark.parametrize("collective, in_place", CASES)
@pytest.mark.parametrize("rank", range(SIZE))
def test_a_right_result_is_right(collective, in_place, rank):
    part, pool = pool_of(collective, in_place, rank)
    _, recv = pool.take(0)
    recv[:] = part.wanted
    pool.check()
    assert pool.wrong == [0]


def nothing_happens(send, recv, part):
    pass


def one_element_is_off(send, recv, part):
    recv[:] = part.wanted
    recv[-1] += 1


def chunks_are_swapped(send, recv, part):
    recv[:] = np.roll(part.wanted, COUNT // SIZE)


def the_next_rank_s_chunk_comes(send, recv, part):
    total = given(exchanges("reduce_scatter", False)).sum(axis=0)
    recv[:] = total[2 * recv.size:]


def a_rank_is_added_twice(send, recv, part):
    recv[:] = part.wanted + part.given


def the_input_is_overwritten(send, recv, part):
    recv[:] = part.wanted
    send[0] = -1


def all_reduced_on_every_rank(send, recv, part):
    recv[:] = given(exchanges("reduce", False)).sum(axis=0)


@pytest.mark.parametrize("collective, in_place, spoil", [
    *((*case, spoil) for case in CASES for spoil in (nothing_happens, one_element_is_off)
      if (case[0], spoil) != ("reduce", nothing_happens)),
    ("allreduce", False, a_rank_is_added_twice),
    ("reduce_scatter", False, the_next_rank_s_chunk_comes),
    ("allgather", False, chunks_are_swapped),
    ("reduce", False, all_reduced_on_every_rank),
    ("reduce", True, all_reduced_on_every_rank),
    ("reduce_scatter", False, the_input_is_overwritten),
    ("allgather", False, the_input_is_overwritten),
])
def test_a_wrong_result_is_counted(collective, in_place, spoil):
    part, pool = pool_of(collective, in_place, rank=1)
    spoil(*pool.take(0), part)
    pool.check()
    assert pool.wrong[0] > 0


@pytest.mark.parametrize("in_place", [True, False])
def test_a_root_that_reduces_nothing_is_wrong(in_place):
    part, pool = pool_of("reduce", in_place, ROOT)
    nothing_happens(*pool.take(0), part)
    pool.check()
    assert pool.wrong[0] > 0


@pytest.mark.parametrize("off, wrong", [(0.5, 0), (2.0, 1), (np.nan, 1)])
def test_a_lossy_result_may_be_off_by_its_slack(off, wrong):
    part = exchanges("allreduce", True)[0]
    pool = Pool(part, [1.0], 0, slots=1)
    _, recv = pool.take(0)
    recv[:] = part.wanted
    recv[3] += off
    pool.check()
    assert pool.wrong == [wrong]


# Runs: everything once, in one job

RUN = """
import sys
from contextlib import ExitStack
import numpy as np
from mpi4py import MPI
import allreduce, compressed, json
from contenders import Unavailable
import baselines

comm = MPI.COMM_WORLD
common = ["-b", "96", "-e", "6000", "-f", "64", "-n", "3", "--rotate", "2"]
for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce"):
    options = ["--collective", collective, "-o", "mean", "--baselines", "mpi,gloo,torch"]
    assert allreduce.main([*common, *options]) == 0  # a mean is a sum and more
for options in (["--baselines", "torch"], ["-d", "int32", "-o", "mean", "--baselines", "gloo"]):
    assert allreduce.main([*common, *options]) == 0

with ExitStack() as stack:
    try:
        hooks = baselines.make("torch", comm, "sum", "allreduce", np.dtype(np.float32), stack)
    except Unavailable:
        sys.exit()
    given = np.arange(5000, dtype=np.float32) + comm.rank
    law = {c.compression: c.law for c in hooks}["powersgd"]

    def forgets(tensor, residual):
        law(tensor, residual)
        residual[7] += 1

    for name, call in (("right", law), ("forgetful", forgets)):
        broken = comm.allreduce(compressed.broken(comm, call, given, False))
        if comm.rank == 0:
            print("powersgd", name, broken)
"""


def test_every_collective_with_every_baseline(tmp_path):
    job = run_script(3, RUN, tmp_path, timeout=120, env=PATH)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("# wrong values: 0") == 7
    labels = {tuple(line.split()[5:7]) for line in job.stdout.splitlines() if " float32 " in line}
    if find_spec("torch"):
        assert labels == {("mpi", "none"), ("auto", "none"), ("gloo", "none"), ("gloo", "fp16"),
                          ("gloo", "bf16"), ("gloo", "powersgd")}
        assert "powersgd right 0\n" in job.stdout
        assert int(re.search(r"powersgd forgetful (\d+)", job.stdout)[1]) > 0
    else:
        assert "# without gloo: torch is not installed" in job.stdout
        assert labels == {("mpi", "none"), ("auto", "none")}
