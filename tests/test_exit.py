"""However a job ends it ends soon, says what was forgotten, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.mpirun import LAUNCH_ENV, launcher
from tests.programs import PRELUDE, run_program


def test_requests_pending_at_the_end_are_completed_and_named(tmp_path):
    out = run_program(2, """
coll.barrier()
request = coll.iallreduce(np.ones(4_000_000, np.float32))
""", tmp_path, timeout=15 + 15)
    for rank in (0, 1):
        assert f"[rank {rank}] at exit: call 2: allreduce(float32[4000000]" in out, out
    assert out.count("never waited for; complete") == 2, out


@pytest.mark.parametrize("level", ["funneled", "multiple"])
def test_a_request_waited_for_on_one_rank_only_completes(level, tmp_path):
    out = run_program(2, """
comm = coll.Communicator()
request = comm.iallreduce(np.ones(4_000_000, np.float32))
if rank:
    assert (request.wait() == size).all()
    print("right")
""", tmp_path, MPI4PY_RC_THREAD_LEVEL=level)
    assert "right" in out and out.count("never waited for; complete") == 1, out


def test_a_request_that_others_never_start_ends_the_job(tmp_path):
    start = time.monotonic()
    out = run_program(2, """
coll.barrier()
if rank == 0:
    request = coll.iallreduce(mine(30))
""", tmp_path, timeout=40, status="failure")
    assert "[rank 0] at exit: call 2: allreduce(float32[30]" in out, out
    assert "still pending after 10 s" in out and time.monotonic() - start < 30


def test_finalizing_mpi_first_is_no_crash(tmp_path):
    out = run_program(2, """
from mpi4py import MPI
comm = coll.Communicator()
assert (comm.iallreduce(mine(4)).wait() == summed(4)).all()
coll.barrier()
MPI.Finalize()
assert "finalized" in raised(RuntimeError, lambda: comm.allreduce(mine(4)))
comm.close()
del comm
gc.collect()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_an_exception_on_one_rank_ends_the_waits_of_the_others(tmp_path):
    start = time.monotonic()
    out = run_program(3, """
coll.barrier()
request = coll.iallreduce(mine(10)) if rank == 0 else None
if rank == 1:
    raise ValueError("not this rank")
request.wait() if rank == 0 else coll.allreduce(mine(10))
""", tmp_path, timeout=30, status="failure")
    assert "[rank 1] ValueError: not this rank" in out and time.monotonic() - start < 20, out


def test_a_killed_rank_ends_the_job(tmp_path):
    start = time.monotonic()
    run_program(2, """
import signal
x = np.ones(1 << 26, np.float32)           # 256 MiB
coll.allreduce(x)
if rank == 1:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    coll.allreduce(x)
""", tmp_path, timeout=60, status="failure")
    assert time.monotonic() - start < 45       # 30 s after the kill, and the start


# A rank that MPI_Init has left a file in /dev/shm keeps it there if it is killed (MPICH does so);
# what our calls add to these must go.
WAITING = """
import re
from pathlib import Path
from mpi4py import MPI
def mapped():
    return set(re.findall(r"/dev/shm/\\S+", Path("/proc/self/maps").read_text()))
library = mapped()
""" + PRELUDE + """
coll.barrier()
if rank == 0:
    request = coll.iallreduce(np.ones(100_000))
note = Path(sys.argv[1], f"rank{rank}")
note.with_suffix(".new").write_text("\\n".join([str(os.getpid()), *(mapped() - library)]))
note.with_suffix(".new").rename(note)
if rank == 0:
    request.wait()
elif rank == 1:
    coll.Communicator(MPI.COMM_WORLD.Split(rank > 1)).allreduce(np.ones(10))
else:
    time.sleep(100)
"""


@pytest.mark.parametrize("whom, number", [
    ("mpirun", signal.SIGINT), ("mpirun", signal.SIGTERM), ("ranks", signal.SIGINT),
    ("one rank", signal.SIGTERM)])
def test_signals_end_a_waiting_job_and_leave_nothing(whom, number, tmp_path):
    job, pids, files = _start_waiting(tmp_path)
    time.sleep(0.5)
    for pid in {"mpirun": [job.pid], "ranks": pids, "one rank": pids[:1]}[whom]:
        os.kill(pid, number)
    out, _ = job.communicate(timeout=30)
    assert job.returncode != 0, out
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, (left, out)
    assert not [file for file in files if os.path.exists(file)], out


def _start_waiting(tmp_path):
    """The job, the process ids of its ranks, and the files in /dev/shm that our calls made."""
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    job = subprocess.Popen(
        [launcher(), "-n", "3", sys.executable, "-P", "-u", str(script), str(tmp_path)],
        env={**os.environ, **LAUNCH_ENV}, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    notes, deadline = [tmp_path / f"rank{rank}" for rank in range(3)], time.monotonic() + 60
    while not all(note.exists() for note in notes):
        assert job.poll() is None and time.monotonic() < deadline, "the job did not start"
        time.sleep(0.05)
    lines = [note.read_text().splitlines() for note in notes]
    return job, [int(pid) for pid, *_ in lines], {file for _, *files in lines for file in files}


def _alive(pid: int) -> bool:
    """True if the process is there and not a zombie that its parent has yet to collect."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_ends_with_a_broken_communicator_ends_the_job(tmp_path):
    start = time.monotonic()
    out = run_program(3, """
coll.barrier()
try:
    coll.allreduce(np.ones(2000 if rank else 1000), algorithm="ring")
except coll.MPIError as error:
    print(f"noticed: {error}", flush=True)
""", tmp_path, timeout=50, status="failure")
    assert "noticed" in out and "broken communicator" in out, out
    assert time.monotonic() - start < 40
