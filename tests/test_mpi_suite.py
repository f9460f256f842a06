"""Run tests/mpi under mpirun; and what keeps one failing rank from hanging the others there."""

import re
import shutil
from pathlib import Path

import pytest

from tests.compile_kernels import compile_all
from tests.mpirun import mpirun

MPI_TESTS = Path(__file__).parent / "mpi"
SIZES = [1, 2, 3, 4, 5, 7, 8]
# Without the user's own settings: a forced algorithm or segment would change what is tested.
ENVIRONMENT = {"COLLECTIVES_ALGORITHM": "auto", "COLLECTIVES_CHECK": "0",
               "COLLECTIVES_STALL_ABORT": "0", "OMP_NUM_THREADS": "1"}


class Run:
    """One pytest on each of several ranks: the job's status and each rank's output."""

    def __init__(self, size, logs, *arguments, timeout):
        self.job = mpirun(size, str(MPI_TESTS / "each_rank.py"), str(logs), "-q", "--tb=short",
                          *map(str, arguments), timeout=timeout, env=ENVIRONMENT)
        self.logs = [(logs / f"rank{rank}.log").read_text() for rank in range(size)]

    def counts(self, word):
        """How many tests each rank reports as `word`."""
        found = [re.search(rf"(\d+) {word}", log.rstrip().rpartition("\n")[2])
                 for log in self.logs]
        return [int(match[1]) if match else 0 for match in found]

    def report(self):
        """The output of the ranks where something failed, or of all."""
        failed = [rank for rank, log in enumerate(self.logs) if "failed on this rank" in log]
        shown = failed or range(len(self.logs))
        parts = [f"==== rank {rank} ====\n{self.logs[rank]}" for rank in shown]
        return "\n".join([f"exit status {self.job.returncode}", self.job.stdout, *parts])


@pytest.fixture(scope="module")
def kernels():
    compile_all()


# Jobs of many ranks share their group with tests that take times: one of these at a time.
MANY = pytest.mark.xdist_group("cores")


@pytest.mark.parametrize("size", [pytest.param(n, marks=MANY) if n > 4 else n for n in SIZES])
def test_on_ranks(size, tmp_path, kernels):
    run = Run(size, tmp_path, MPI_TESTS, timeout=900)
    passed = run.counts("passed")
    assert run.job.returncode == 0, run.report()
    assert min(passed) > 0 and len(set(passed)) == 1, f"passed {passed}\n{run.report()}"


def small_suite(folder, source):
    """A folder with tests of its own and the conftest of tests/mpi."""
    shutil.copy(MPI_TESTS / "conftest.py", folder)
    (folder / "test_small.py").write_text("import collectives as coll\n" + source)
    return folder / "test_small.py"


def test_a_failure_on_one_rank_is_reported_on_all_and_the_next_test_runs(tmp_path):
    tests = small_suite(tmp_path, """
def test_fails():
    assert coll.rank() != 0, "only here"

def test_runs():
    assert coll.allreduce(1) == coll.size()
""")
    run = Run(2, tmp_path, tests, timeout=60)
    assert run.job.returncode != 0
    assert run.counts("failed") == run.counts("passed") == [1, 1], run.report()
    assert "failed on this rank, 0 of 2" in run.logs[0]
    assert "rank 0: AssertionError: only here" in run.logs[1], run.logs[1]


def test_calls_that_only_some_ranks_made_in_a_failed_test_meet_none_of_the_next(tmp_path):
    tests = small_suite(tmp_path, """
def test_fails_on_one_rank_while_another_sends():
    assert coll.rank() != 0, "only here"
    coll.reduce(100.0, root=0)

def test_runs():
    assert coll.allreduce(1.0) == coll.size()
""")
    run = Run(2, tmp_path, tests, timeout=60)
    assert run.counts("failed") == run.counts("passed") == [1, 1], run.report()


def test_a_fixture_that_fails_on_one_rank_is_reported_on_all(tmp_path):
    tests = small_suite(tmp_path, """
import pytest

@pytest.fixture
def broken():
    assert coll.rank() != 1, "only here"

def test_needs_it(broken):
    coll.barrier()
""")
    run = Run(2, tmp_path, tests, timeout=60)
    assert run.job.returncode != 0 and run.counts("error") == [1, 1], run.report()


def test_a_rank_that_waits_for_a_failed_one_ends_the_job_with_both_stacks(tmp_path):
    tests = small_suite(tmp_path, """
def test_fails_before_the_others():
    assert coll.rank() != 0, "only here"
    coll.barrier()
""")
    run = Run(2, tmp_path, tests, "--test-seconds", 3, timeout=60)
    assert run.job.returncode != 0
    assert "AssertionError: only here" in run.logs[0], run.report()
    assert "in barrier" in run.logs[1], run.report()


def test_a_run_without_tests_is_no_success(tmp_path):
    run = Run(2, tmp_path, small_suite(tmp_path, ""), timeout=60)
    assert run.counts("passed") == [0, 0]
