"""A few seconds of tests/stress.py, and that it notices a wrong result."""

import re
from pathlib import Path

import pytest

from tests.mpirun import mpirun, run_script

STRESS = Path(__file__).with_name("stress.py")


@pytest.mark.parametrize("size", [2, 5])
def test_random_calls_are_right(size):
    job = mpirun(size, str(STRESS), "--seconds", "4", timeout=120)
    assert job.returncode == 0, job.stdout
    assert int(re.search(r"(\d+) calls, 0 wrong", job.stdout)[1]) >= 64


def test_a_wrong_result_is_noticed(tmp_path):
    job = run_script(2, f"""
import sys
sys.path[:0] = [{str(STRESS.parent)!r}]
import stress
right, stress.schedules.VERBS = stress.expected, ("allreduce",)
def off_by_one(*args):
    want = right(*args).copy()
    want[-1] += 1
    return want
stress.expected = off_by_one
sys.argv = ["stress", "--seconds", "0.1"]
sys.exit(stress.main())
""", tmp_path, timeout=120)
    assert job.returncode != 0 and "wrong in" in job.stdout, job.stdout
