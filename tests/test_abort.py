"""One rank fails, the job ends: within seconds, with that rank's traceback."""

import re

import pytest

from tests.mpirun import mpirun, run_script

WITH_US = """
import sys, threading, time
from collectives.lifecycle import mpi
world = mpi().COMM_WORLD
"""

HOOKS_ONLY = """
import sys, threading, time
from collectives import abort
abort.install()
from mpi4py import MPI
world = MPI.COMM_WORLD
"""

OTHERS_WAIT = """
if world.rank == 1:
    {failure}
time.sleep(60)
"""


def run(source, tmp_path, timeout=30, **kwargs):
    """Two ranks; a job in which one waits for the other (60 s or for ever) hits the time limit."""
    return run_script(2, source, tmp_path, timeout=timeout, **kwargs)


@pytest.mark.parametrize("start", [WITH_US, HOOKS_ONLY], ids=["after our call", "hooks only"])
def test_an_exception_before_a_barrier_ends_the_job_with_its_traceback(start, tmp_path):
    source = start + """
if world.rank == 1:
    raise ValueError("not this rank")
world.Barrier()
"""
    job = run(source, tmp_path)
    assert job.returncode != 0, job.stdout
    for line in (r"Traceback \(most recent call last\):", r"ValueError: not this rank"):
        assert re.search(rf"^\[rank 1\] {line}$", job.stdout, re.M), job.stdout


def test_an_exception_in_a_thread_ends_the_job(tmp_path):
    source = WITH_US + """
def work():
    raise ValueError("in a thread")
if world.rank == 1:
    threading.Thread(target=work).start()
time.sleep(60)
"""
    job = run(source, tmp_path)
    assert job.returncode != 0 and "[rank 1] ValueError: in a thread" in job.stdout, job.stdout


@pytest.mark.parametrize("failure, status, words", [
    ("sys.exit(3)", 3, "[rank 1] exit status 3"),
    ("sys.exit('no such file')", 1, "no such file"),
    ("raise KeyboardInterrupt", 130, "[rank 1] KeyboardInterrupt"),
    ("import argparse; argparse.ArgumentParser().error('bad option')", 2, "bad option"),
], ids=["sys.exit(3)", "sys.exit(text)", "KeyboardInterrupt", "argparse"])
def test_a_failing_exit_ends_the_job_with_its_status(failure, status, words, tmp_path):
    job = run(WITH_US + OTHERS_WAIT.format(failure=failure), tmp_path)
    assert job.returncode == status and words in job.stdout, job.stdout


def test_stdout_is_flushed_before_the_job_ends(tmp_path):
    failure = "sys.stdout.reconfigure(line_buffering=False, write_through=False)\n" \
              "    print('last words'); sys.exit(3)"
    job = run(WITH_US + OTHERS_WAIT.format(failure=failure), tmp_path)
    assert job.returncode == 3 and "last words" in job.stdout, job.stdout


@pytest.mark.parametrize("ending", ["", "sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_a_normal_end_waits_for_the_others(ending, tmp_path):
    source = WITH_US + f"""
if world.rank == 0:
    time.sleep(1)
    print("done", flush=True)
{ending}
"""
    job = run(source, tmp_path)
    assert job.returncode == 0 and "done" in job.stdout and "[rank" not in job.stdout, job.stdout


def test_an_exit_that_is_caught_is_not_an_exit(tmp_path):
    source = WITH_US + """
def careful():
    try:
        sys.exit(3)
    except SystemExit as error:
        return error
assert careful().code == 3
world.Barrier()
"""
    job = run(source, tmp_path)
    assert job.returncode == 0 and "[rank" not in job.stdout, job.stdout


def test_sys_exit_in_a_thread_ends_the_thread_only(tmp_path):
    source = WITH_US + """
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
world.Barrier()
"""
    job = run(source, tmp_path)
    assert job.returncode == 0, job.stdout


@pytest.mark.parametrize("how", ["environment", "call"])
def test_opting_out_leaves_the_others_running(how, tmp_path):
    source = WITH_US + """
from collectives.abort import abort_on_exception
if CALL:
    abort_on_exception(False)
if world.rank == 1:
    try:
        world.recv(source=0)
    finally:
        print("rank 1 ends")
def fail():
    raise ValueError("printed")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
time.sleep(1)
world.send(None, 1)
print("rank 0 goes on")
""".replace("CALL", str(how == "call"))
    env = {"COLLECTIVES_ABORT": "0"} if how == "environment" else {}
    job = run(source, tmp_path, env=env)
    assert job.returncode == 0, job.stdout
    assert "ValueError: printed" in job.stdout and "rank 0 goes on" in job.stdout
    assert "[rank" not in job.stdout


def test_hooks_of_others_print_and_the_job_still_ends(tmp_path):
    # One hook from before ours, one from after that replaces ours and does not call it.
    source = """
import sys
sys.excepthook = lambda kind, value, trace: print("first hook:", value, file=sys.stderr)
from collectives import abort
abort.install()
ours = sys.excepthook
def second(kind, value, trace):
    print(f"second hook: {value}", file=sys.stderr)
    ours(kind, value, trace)
sys.excepthook = second
""" + WITH_US + """
if world.rank == 1:
    raise ValueError("once")
world.Barrier()
"""
    job = run(source, tmp_path)
    assert job.returncode != 0, job.stdout
    for text in ("[rank 1] first hook: once", "[rank 1] second hook: once"):
        assert job.stdout.count(text) == 1, job.stdout


def test_a_status_can_be_noted_for_a_bare_system_exit(tmp_path):
    failure = "from collectives.abort import note_status; note_status(5); raise SystemExit(5)"
    job = run(WITH_US + OTHERS_WAIT.format(failure=failure), tmp_path)
    assert job.returncode == 5, job.stdout


def test_a_test_that_fails_on_one_rank_ends_the_job(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from collectives import abort\n"
        "def pytest_sessionfinish(exitstatus):\n    abort.note_status(exitstatus)\n")
    (tmp_path / "test_it.py").write_text(
        WITH_US + "def test_it():\n    assert world.rank == 0\n    world.Barrier()\n")
    job = mpirun(2, "-m", "pytest", "--color=no", str(tmp_path), timeout=30)
    assert job.returncode == 1 and "assert world.rank == 0" in job.stdout, job.stdout


def test_a_failing_child_of_a_rank_does_not_end_the_job(tmp_path):
    source = WITH_US + """
import multiprocessing
def fail():
    raise ValueError("in a child")
child = multiprocessing.get_context("fork").Process(target=fail)
child.start()
child.join()
assert child.exitcode == 1
world.Barrier()
print("rank goes on")
"""
    job = run(source, tmp_path)
    assert job.returncode == 0 and job.stdout.count("rank goes on") == 2, job.stdout


def test_a_failure_before_our_first_call_ends_the_job_of_a_user_of_mpi(tmp_path):
    job = run_script(2, """
from mpi4py import MPI
import collectives
if MPI.COMM_WORLD.rank == 1:
    raise ValueError("early")
MPI.COMM_WORLD.Barrier()
""", tmp_path, timeout=30)
    assert job.returncode != 0 and "[rank 1] ValueError: early" in job.stdout, job.stdout
