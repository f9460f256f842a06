"""The allreduce bench: honest times, every result checked, and it fails if one is wrong."""

import json
import os
import re
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpirun import mpirun, run_script

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # benches are scripts, not a package

import allreduce
import arguments
import collective
import timing

BENCH = Path(__file__).parents[1] / "bench"
# The launcher runs Python with -P, which hides the script's own folder.
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(BENCH)]))}
KEYS = {"nbytes", "count", "dtype", "op", "algorithm", "compression", "ranks", "time_us",
        "time_min_us", "time_max_us", "algbw", "busbw", "wrong", "in_place", "wire_nbytes",
        "logical_nbytes", "collective"}


def bench(n, *options):
    return mpirun(n, str(BENCH / "allreduce.py"), *options, timeout=120, env=PATH)


# Arguments

@pytest.mark.parametrize("text, nbytes", [
    ("8", 8), ("1K", 1024), ("64M", 64 << 20), ("2g", 2 << 30), ("4KB", 4096)])
def test_size_suffixes_are_powers_of_1024(text, nbytes):
    assert arguments.parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-8", "8X", "1.5M", "K"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ArgumentTypeError, match="expected a size"):
        arguments.parse_nbytes(text)


def test_sizes_grow_by_the_factor_and_none_is_repeated():
    args = allreduce.parse(["-b", "1", "-e", "64", "-f", "2", "-d", "float32"])
    assert allreduce.counts(args, 3) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("options", [
    ["-f", "1"], ["-n", "0"], ["-w", "-1"], ["-d", "object"], ["-o", "xor"],
    ["--baselines", "magic"], ["--in-place", "--out-of-place"]])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(SystemExit):
        arguments.parse(options)


# Data

@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "float32", "complex64"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 40])
def test_sums_are_exact_in_any_order(dtype, size):
    dtype = np.dtype(dtype)
    parts = collective.inputs("sum", dtype, size)
    want = collective.expected("sum", dtype, size)
    assert np.array_equal(want, parts.sum(axis=0))  # it fits the dtype
    for order in (range(size), reversed(range(size))):
        total = np.zeros(parts.shape[1], dtype)
        for rank in order:
            total += parts[rank].astype(dtype)
        assert np.array_equal(total, want)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_no_rank_holds_the_result_already(op, size):
    dtype = np.dtype(np.float32)
    for part in collective.inputs(op, dtype, size):
        assert not np.array_equal(part, collective.expected(op, dtype, size))


def test_ranks_too_many_for_exact_sums_are_refused():
    with pytest.raises(ValueError, match="wider dtype"):
        collective.modulus(np.dtype(np.int8), 128)


# Runs

@pytest.mark.parametrize("n, options", [
    (1, []),
    (2, ["-d", "float64", "--rotate", "1"]),
    (3, ["-o", "mean", "--algorithms", "ring,tree"]),
    (4, ["-d", "int32", "-o", "max", "--in-place"]),
])
def test_a_run_has_no_wrong_values(n, options, tmp_path):
    file = tmp_path / "rows.json"
    job = bench(n, "-b", "8", "-e", "8K", "-f", "32", "-n", "5", "--json", str(file), *options)
    assert job.returncode == 0, job.stdout
    rows = json.loads(file.read_text())
    for row in rows:
        assert row.keys() == KEYS
        assert row["wrong"] == 0 and row["ranks"] == n
        assert 0 < row["time_min_us"] <= row["time_us"] <= row["time_max_us"]
    assert "mpi" in {row["algorithm"] for row in rows}
    places = {True} if "--in-place" in options else {True, False}
    assert {row["in_place"] for row in rows} == places


def test_one_rank_has_no_bus_bandwidth():
    job = bench(1, "-b", "1K", "-e", "1K", "-n", "3", "--in-place")
    assert job.returncode == 0, job.stdout
    assert "nan" not in job.stdout
    assert re.search(r" -  +0$", job.stdout, re.MULTILINE)


def test_an_unknown_algorithm_is_an_error_that_says_so():
    job = bench(2, "--algorithms", "magic", "-e", "8")
    assert job.returncode != 0 and "magic" in job.stdout


# The bench earns trust by rejecting wrong contenders, each for its own reason.

WRONG = """
import sys
import numpy as np
from mpi4py import MPI
import allreduce
from baselines import mpi
from contenders import Contender

comm = MPI.COMM_WORLD
right = mpi(comm, "sum").call
calls = 0

def keeps_its_input(send, recv):
    recv[...] = send

def adds_a_rank_twice(send, recv):
    extra = comm.bcast(send, root=comm.size - 1)
    right(send, recv)
    recv += extra

def spoils_one_element_on_one_rank(send, recv):
    right(send, recv)
    recv[-1] += comm.rank == 1

def is_wrong_once(send, recv):
    global calls
    right(send, recv)
    calls += 1
    recv[0] += calls == 4

def writes_to_its_input(send, recv):
    right(send, recv)
    send[0] = -1

def leaves_nan(send, recv):
    right(send, recv)
    recv[0] = np.nan

args = allreduce.parse(["-b", "1K", "-e", "1K", "-n", "5", *sys.argv[2:]])
say = print if comm.rank == 0 else lambda text: None
sys.exit(allreduce.run(args, comm, [mpi(comm, args.op), Contender("it", globals()[sys.argv[1]])],
                       say))
"""


@pytest.mark.parametrize("contender, options, wrong", [
    ("keeps_its_input", [], None),
    ("adds_a_rank_twice", [], None),
    ("spoils_one_element_on_one_rank", ["--in-place"], 7),   # warm-up samples are checked too
    ("spoils_one_element_on_one_rank", ["--in-place", "--rotate", "1"], 7),
    ("is_wrong_once", ["--out-of-place"], 3),                # once on each of 3 ranks
    ("writes_to_its_input", ["--out-of-place"], 21),
    ("leaves_nan", ["--out-of-place", "-o", "mean"], None),
])
def test_a_wrong_contender_fails_the_bench(contender, options, wrong, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WRONG)
    job = mpirun(3, str(script), contender, *options, timeout=120, env=PATH)
    assert job.returncode != 0, job.stdout
    total = int(re.search(r"# wrong values: (\d+)", job.stdout)[1])
    assert total == wrong if wrong is not None else total > 0
    assert re.search(r" mpi .* 0$", job.stdout, re.MULTILINE)  # the others' rows are not blamed


LATE = """
import dataclasses, time
from mpi4py import MPI
import allreduce
from baselines import mpi

comm = MPI.COMM_WORLD
late = dataclasses.replace(mpi(comm, "sum"), prepare=lambda: time.sleep(0.05 * (comm.rank == 2)))
args = allreduce.parse(["-n", "5", "--in-place"])
[row] = allreduce.measure(comm, [late], args, 256, True)
if comm.rank == 0:
    assert row["time_min_us"] <= row["time_us"] <= row["time_max_us"], row
    print("median", row["time_us"])
"""

SLOW = """
import time
from mpi4py import MPI
import allreduce
from contenders import Contender

comm = MPI.COMM_WORLD
slow = Contender("slow", lambda send, recv: time.sleep(0.05 * (comm.rank == 2)))
args = allreduce.parse(["-n", "5"])
[row] = allreduce.measure(comm, [slow], args, 256, True)
if comm.rank == 0:
    print("median", row["time_us"])
"""


def median_us(source, tmp_path):
    job = run_script(3, source, tmp_path, timeout=120, env=PATH)
    assert job.returncode == 0, job.stdout
    return float(re.search(r"median (\S+)", job.stdout)[1])


@pytest.mark.xdist_group("cores")  # not beside a job of many ranks
def test_a_rank_that_comes_late_is_not_counted(tmp_path):
    assert median_us(LATE, tmp_path) < 25_000


def test_a_rank_that_takes_long_is_the_time_of_all(tmp_path):
    assert median_us(SLOW, tmp_path) >= 50_000


def test_contenders_take_turns_there_and_back_and_the_first_calls_of_a_turn_do_not_count():
    called, prepared = [], []
    calls = [lambda k: called.append("a"), lambda k: called.append("b")]

    def prepare(k):
        prepared.append("ab"[k])
        return (k,)

    times_s = timing.interleave(MPI.COMM_SELF, calls, prepare, iterations=7, warmup=1)
    assert times_s.shape == (2, 7) and (times_s > 0).all()
    assert "".join(called) == 6 * "a" + 6 * "b" + 3 * "b" + 3 * "a"
    assert prepared == called


# Compression

def test_a_compressed_row_says_what_is_sent_and_is_checked(tmp_path):
    file = tmp_path / "rows.json"
    job = bench(2, "-b", "64K", "-e", "64K", "-n", "3", "--in-place", "--algorithms", "ring",
                "--compression", "none", "int8", "topk:0.01", "--feedback", "--json", str(file))
    assert job.returncode == 0, job.stdout
    rows = {row["compression"]: row for row in json.loads(file.read_text())
            if row["algorithm"] == "ring"}
    assert set(rows) == {"none", "int8", "topk:0.01"}
    assert {row["logical_nbytes"] for row in rows.values()} == {65536}
    assert rows["none"]["wire_nbytes"] == 65536
    assert rows["int8"]["wire_nbytes"] == 65536 / 4 + 65536 / 4 / 256 * 4
    assert rows["topk:0.01"]["wire_nbytes"] == 2 * 8 * 81  # of two chunks of 8192
    assert "ring/int8" in job.stdout


LOSSY = """
import sys
import numpy as np
from mpi4py import MPI
import collectives
from compressed import broken

comm = MPI.COMM_WORLD
given = np.arange(1000, dtype=np.float32) + comm.rank

def call(x, residual):
    collectives.allreduce(x, compression="int8", residual=residual)
    {spoil}

total = comm.allreduce(broken(comm, call, given, False))
if comm.rank == 0:
    print("broken", total)
"""


@pytest.mark.parametrize("spoil, some", [
    ("pass", False),
    ("residual[7] += 1", True),                  # something lost
    ("x[5] += comm.rank", True),                 # replicas differ
])
def test_a_broken_law_is_noticed(spoil, some, tmp_path):
    job = run_script(2, LOSSY.format(spoil=spoil), tmp_path, timeout=120, env=PATH)
    assert (int(re.search(r"broken (\d+)", job.stdout)[1]) > 0) == some, job.stdout
