"""What `python -m collectives.info` says, with and without MPI."""

import json
import os
import subprocess
import sys

import pytest

from collectives import info
from tests.mpirun import mpirun
from tests.test_lifecycle import FAKE_MPI4PY, other_launcher


def run_info(*args, **env):
    return subprocess.run([sys.executable, "-P", "-m", "collectives.info", *args], text=True,
                          capture_output=True, timeout=60, env={**os.environ, **env})


@pytest.fixture
def no_mpi_path(tmp_path):
    """A directory whose mpi4py cannot be imported."""
    (tmp_path / "mpi4py.py").write_text(FAKE_MPI4PY)
    return str(tmp_path)


def test_one_process_shows_versions_library_and_placement():
    facts = json.loads(run_info("--json").stdout)
    assert facts["versions"]["mpi-collectives"] and facts["versions"]["numpy"]
    assert facts["mpi"]["size"] == 1 and facts["mpi"]["takes GPU buffers"].startswith("no")
    assert facts["ranks"][0]["cpus"] == sorted(os.sched_getaffinity(0))


def test_rank_0_prints_a_table_of_all_ranks():
    job = mpirun(3, "-m", "collectives.info", timeout=60)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("3 ranks on") == 1 and "mpirun" in job.stdout
    rows = [line.split() for line in job.stdout.splitlines()]
    assert [row[0] for row in rows if len(row) == 3 and row[0].isdigit()] == ["0", "1", "2"]


@pytest.mark.parametrize("option", ["--help", "--no-mpi"])
def test_help_and_versions_need_no_mpi(option, no_mpi_path):
    job = run_info(option, PYTHONPATH=no_mpi_path)
    assert job.returncode == 0, job.stderr
    assert "--json" in job.stdout or "numpy" in job.stdout


def test_an_mpi_that_does_not_load_is_one_clear_line(no_mpi_path):
    job = run_info(PYTHONPATH=no_mpi_path)
    assert job.returncode == 1 and "Traceback" not in job.stderr
    assert "error: cannot load MPI through mpi4py" in job.stderr


def test_the_mpirun_of_another_mpi_fails_with_both_names():
    job = run_info(**other_launcher())
    assert job.returncode == 1 and "Traceback" not in job.stderr
    assert "started 4 processes" in job.stderr and "MPI" in job.stderr


def test_ranges():
    assert info.ranges([]) == "" and info.ranges([3]) == "3"
    assert info.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def rank(number, cpus, host="a"):
    return {"rank": number, "host": host, "cpus": cpus}


@pytest.mark.parametrize("ranks, words", [
    ([rank(0, [0, 1]), rank(1, [0, 1])], None),
    ([rank(0, [0, 1]), rank(1, [0, 1]), rank(2, [0, 1])], "3 ranks share 2 CPUs"),
    ([rank(0, [0]), rank(1, [0])], "2 ranks share 1 CPUs"),
    ([rank(0, [0]), rank(1, [1])], "ranks 0-1 are bound to one CPU each"),
    ([rank(0, [0, 1]), rank(1, [0, 1], "b")], None),
])
def test_placements_that_cost_time_are_warned_about(ranks, words):
    found = info.warnings(ranks)
    assert len(found) == (words is not None) and (words or "") in "".join(found)
