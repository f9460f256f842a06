"""Several Python threads, and processes forked from a rank."""

from tests.programs import run_program

RUN_THREADS = """
failures = []
def in_threads(*works):
    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(repr(error))
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failures, failures
"""


def test_threads_on_one_communicator_never_mix_results(tmp_path):
    out = run_program(2, RUN_THREADS + """
def adds(value):
    def work():
        for k in range(100):
            x = np.full(1000, value, np.float32)
            y = coll.iallreduce(x).wait() if k % 3 == 0 else coll.allreduce(x)
            assert (y == size * value).all(), (value, y)
    return work
coll.barrier()
in_threads(adds(1), adds(100))
in_threads(adds(1), adds(100), adds(10_000))             # new threads, some with the old names
assert (coll.allreduce(mine()) == summed()).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_a_communicator_per_thread_is_always_right(tmp_path):
    out = run_program(2, RUN_THREADS + """
from mpi4py import MPI
comms = [coll.Communicator(MPI.COMM_WORLD.Dup()) for _ in range(2)]
def adds(comm, value):
    def work():
        for k in range(100):
            n = 1 + 997 * k % 5000
            y = coll.allreduce(np.full(n, value, np.float32), comm=comm)
            assert (y == size * value).all(), (value, y)
    return work
works = [adds(comm, 1 + 99 * k) for k, comm in enumerate(comms)]
in_threads(*works)
for comm in comms:
    comm.close()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_several_threads_wait_for_one_request(tmp_path):
    out = run_program(2, RUN_THREADS + """
coll.barrier()
if rank:
    time.sleep(0.3)
for k in range(20):
    grid = np.zeros((40, 40))
    grid[::2, ::2] = mine(400, np.float64).reshape(20, 20)
    request, got = coll.iallreduce(grid[::2, ::2]), []
    in_threads(*[lambda: got.append(request.wait())] * 3)
    assert len(got) == 3 and all(y is got[0] for y in got) and request.wait() is got[0]
    assert (grid[::2, ::2].ravel() == summed(400)).all() and (grid[1::2] == 0).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_threads_that_cannot_be_told_apart_are_refused(tmp_path):
    out = run_program(1, """
comm, meet, texts = coll.Communicator(), threading.Barrier(2), []
def work():
    meet.wait()
    try:
        comm.allreduce(mine(3))
    except RuntimeError as error:
        texts.append(str(error))
    meet.wait()
threads = [threading.Thread(target=work, name="twin") for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(texts) == 1 and "'twin'" in texts[0] and "different names" in texts[0], texts
for k in range(300):                       # many short-lived threads: memory is let go of
    thread = threading.Thread(target=lambda: comm.allreduce(mine(100_000)))
    thread.start(); thread.join()
kept = sum(len(lane.executions) + len(lane.repeats) for lane in comm.lanes.by_index.values())
assert kept <= 2, kept
print("right")
""", tmp_path)
    assert "right" in out, out


def test_user_messages_are_never_ours(tmp_path):
    out = run_program(2, """
from mpi4py import MPI
world = MPI.COMM_WORLD
received = np.zeros(1000, np.uint8)
anything = world.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)
on_world = coll.Communicator(world)
for k in range(20):
    assert (on_world.allreduce(mine(2000 * k)) == summed(2000 * k)).all()
assert not anything.Test()
on_world.barrier()
world.Send(np.full(1000, rank, np.uint8), 1 - rank, 7)
anything.Wait()
assert (received == 1 - rank).all()

half = coll.Communicator(world.Split(rank))              # of one rank
back = coll.Communicator(world.Split(0, -rank))          # in reverse order
assert (half.size, half.rank, back.rank) == (1, 0, size - 1 - rank)
assert (half.allreduce(mine(5)) == mine(5)).all()
assert (back.broadcast(mine(5), 0) == size * np.arange(1, 6)).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_forked_children_compute_but_may_not_communicate(tmp_path):
    out = run_program(2, """
import multiprocessing
coll.allreduce(mine())
request = coll.iallreduce(mine(7))

def compute(k):
    return float(np.arange(k).sum())

def communicate(_):
    texts = [raised(RuntimeError, lambda: coll.allreduce(mine())),
             raised(RuntimeError, lambda: coll.iallreduce(mine())),
             raised(RuntimeError, coll.Communicator), raised(RuntimeError, coll.world().close)]
    if not request.done:
        texts.append(raised(RuntimeError, request.wait))
    return all("fork" in text for text in texts)

with multiprocessing.get_context("fork").Pool(2) as pool:
    later = pool.map_async(compute, range(300))
    for k in range(50):
        assert (coll.allreduce(mine(100 + k)) == summed(100 + k)).all()
    assert later.get(30) == [k * (k - 1) / 2 for k in range(300)]
    assert pool.map(communicate, range(2)) == [True, True]
assert (request.wait() == summed(7)).all()
assert (coll.allreduce(mine()) == summed()).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out
