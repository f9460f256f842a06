"""A wait that is too long says who is late; nothing burns a core; a broken communicator says so."""

import pytest

from tests.mpirun import run_script
from tests.programs import run_program

LATE = "ranks that have not arrived: [2]"


def test_a_late_rank_is_named_once_and_the_call_completes(tmp_path):
    out = run_program(3, """
coll.barrier()
if rank == 2:
    time.sleep(4.5)
assert (coll.allreduce(mine(1000)) == summed(1000)).all()
request = coll.iallreduce(mine(10))
assert (request.wait() == summed(10)).all()
print("right")
""", tmp_path, COLLECTIVES_STALL_SECONDS="1")
    assert out.count("right") == 3, out
    for rank in (0, 1):
        assert out.count(f"[rank {rank}] call 2: allreduce(float32[1000]") == 1, out
    assert out.count(LATE) == 2 and "[rank 2]" not in out, out


def test_a_rank_that_skips_a_step_stalls_the_job_which_then_ends(tmp_path):
    out = run_program(3, """
for step in range(6 if rank == 2 else 5):
    coll.allreduce(mine(1000))
if rank == 2:
    print("never")
elif rank == 1:
    time.sleep(60)
""", tmp_path, timeout=40, status="failure",
                      COLLECTIVES_STALL_SECONDS="0.5", COLLECTIVES_STALL_ABORT="3")
    assert "never" not in out, out
    assert "[rank 2] collectives.errors.StallError: [rank 2] call 6: allreduce(float32[1000]" in out
    assert "ranks that have not arrived: [0, 1]" in out, out


def test_after_a_stall_the_communicator_is_broken_and_a_request_is_not(tmp_path):
    out = run_program(2, """
slow = coll.Communicator()
request = coll.iallreduce(mine(5))
if rank == 0:
    text = raised(coll.StallError, lambda: slow.allreduce(mine(10)))
    assert "not arrived: [1]" in text, text
    assert "StallError" in raised(RuntimeError, lambda: slow.allreduce(mine(10)))
    slow.close()                                         # not freed: messages are on their way
else:
    time.sleep(3)
assert (request.wait() == summed(5)).all()
assert (coll.allreduce(mine(7)) == summed(7)).all()
print("right")
""", tmp_path, COLLECTIVES_STALL_ABORT="1.5", COLLECTIVES_STALL_SECONDS="0")
    assert out.count("right") == 2, out


def test_a_rank_that_never_makes_the_communicator_is_waited_for_with_a_warning(tmp_path):
    source = """
import sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    time.sleep(4)
import collectives as coll
coll.barrier()
print("right")
"""
    job = run_script(2, source, tmp_path, timeout=60, env={"COLLECTIVES_STALL_SECONDS": "1"})
    assert job.returncode == 0 and job.stdout.count("right") == 2, job.stdout
    assert job.stdout.count("[rank 0] making a Communicator has waited") == 1, job.stdout


def test_waiting_does_not_burn_the_core(tmp_path):
    out = run_program(2, """
coll.allreduce(mine(10)); coll.allreduce(mine(10), algorithm="native")
coll.iallreduce(mine(10)).wait()
for what, act in {"blocking": lambda: coll.allreduce(mine(10)),
                  "wait": lambda: coll.iallreduce(mine(10)).wait(),
                  "native": lambda: coll.allreduce(mine(10), algorithm="native")}.items():
    coll.barrier()
    if rank == 1:
        time.sleep(2)
    cpu, clock = time.process_time(), time.monotonic()
    act()
    cpu, clock = time.process_time() - cpu, time.monotonic() - clock
    if rank == 0:
        print(f"{what}: {100 * cpu / clock:.1f} % of a core for {clock:.2f} s")
        assert clock > 1 and cpu < 0.3 * clock
coll.barrier()
""", tmp_path)
    assert out.count("% of a core") == 3, out


def test_ctrl_c_in_a_blocking_call_breaks_the_communicator_and_no_other(tmp_path):
    out = run_program(2, """
import signal
comm, request = coll.Communicator(), coll.iallreduce(mine(50))
request.wait()
pending = coll.iallreduce(mine(100_000))
if rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGALRM, lambda *_: signal.default_int_handler(2, None))
    start = time.monotonic()
    raised(KeyboardInterrupt, lambda: comm.allreduce(mine(10)))
    assert time.monotonic() - start < 2
    assert "KeyboardInterrupt" in raised(RuntimeError, comm.barrier)
    comm.close()                                         # or the job would end as a failure

    signal.setitimer(signal.ITIMER_REAL, 0.5)            # in wait(): the request goes on
    late = coll.iallreduce(mine(3))
    raised(KeyboardInterrupt, late.wait)
else:
    time.sleep(2)
    late = coll.iallreduce(mine(3))
assert (late.wait() == summed(3)).all() and (pending.wait() == summed(100_000)).all()
assert (coll.allreduce(mine(9)) == summed(9)).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_closing_completes_what_is_pending(level, tmp_path):
    out = run_program(2, """
comm = coll.Communicator()
requests = [comm.iallreduce(mine(n)) for n in (3, 300_000)]
comm.close()
comm.close()
assert all(request.done for request in requests)
assert [t.name for t in threading.enumerate()] == ["MainThread"]
assert (requests[1].wait() == summed(300_000)).all() and (requests[0].wait() == summed(3)).all()
assert "closed" in raised(RuntimeError, lambda: comm.allreduce(mine(3)))
assert "closed" in repr(comm)
with coll.Communicator() as other:
    assert (other.allreduce(mine(3)) == summed(3)).all()
assert "closed" in raised(RuntimeError, other.barrier)
assert "comm=<" in raised(TypeError, lambda: coll.allreduce(mine(3), comm=other._mpi.COMM_WORLD))
print("right")
""", tmp_path, MPI4PY_RC_THREAD_LEVEL=level)
    assert out.count("right") == 2, out


def test_communicators_are_dropped_at_any_time_and_closed_without_end(tmp_path):
    out = run_program(2, """
def make():
    comm = coll.Communicator()
    assert (comm.iallreduce(mine(3)).wait() == summed(3)).all()
    return comm
comm = make()
if rank == 0:
    del comm
    gc.collect()
else:
    def fail():
        kept = comm
        raise ValueError
    try:
        fail()
    except ValueError as error:
        trace = error
assert (coll.allreduce(mine(9)) == summed(9)).all()
for k in range(2500):                      # MPICH has about 2,000 at a time
    comm = coll.Communicator()
    if k % 500 == 0:
        assert (comm.iallreduce(mine(3)).wait() == summed(3)).all()
    comm.close()
assert threading.active_count() <= 2
print("right")
""", tmp_path, timeout=120)
    assert out.count("right") == 2, out
