"""iallreduce: any number in flight, waited for in any order, in any thread, at any thread level."""

import pytest

from tests.programs import run_program

LEVELS = ("single", "funneled", "serialized", "multiple")

IN_ANY_ORDER = """
requests = [coll.iallreduce(mine(n)) for n in (1, 1000, 0, 200_000, 7, 31_001)]
blocking = coll.allreduce(mine(50), op="mean")           # queues behind them
order = [3, 0, 5, 1, 4, 2] if rank else [0, 1, 2, 3, 4, 5]
for k in order:
    n = (1, 1000, 0, 200_000, 7, 31_001)[k]
    assert (requests[k].wait() == summed(n)).all()
    assert requests[k].wait() is requests[k].wait() and requests[k].test()
assert (blocking == summed(50) / np.float32(size)).all()
"""

RIGHT_AT_ANY_LEVEL = IN_ANY_ORDER + """
from mpi4py import MPI
assert MPI.Query_thread() == getattr(MPI, "THREAD_" + LEVEL)

# Two communicators, waited for in different orders: each wait progresses both.
other, user = coll.Communicator(), MPI.COMM_WORLD.Dup()
for n in (10, 100_000):
    a, b = coll.iallreduce(mine(n)), other.iallreduce(mine(n), op="max")
    first, second = (a, b) if rank else (b, a)
    first.wait(), second.wait()
    assert (a.wait() == summed(n)).all() and (b.wait() == mine(n) / (rank + 1) * size).all()
    a = coll.iallreduce(mine(n))
    if rank:
        a.wait()
    assert (other.allreduce(mine(n)) == summed(n)).all()  # progresses the pending one too
    while not a.test():
        time.sleep(0.001)
    assert (a.wait() == summed(n)).all()

# A helper thread exists only where MPI allows it.
request = coll.iallreduce(mine(10))
helpers = [t for t in threading.enumerate() if t.name.startswith("collectives")]
assert bool(helpers) == (LEVEL == "MULTIPLE"), helpers
request.wait()

# Another thread may wait only where MPI allows it.
request, caught = coll.iallreduce(mine(100_000)), []
def wait_elsewhere():
    try:
        caught.append(request.wait())
    except RuntimeError as error:
        caught.append(str(error))
if LEVEL == "MULTIPLE" or not request.done:
    thread = threading.Thread(target=wait_elsewhere)
    thread.start(); thread.join()
    if LEVEL == "MULTIPLE":
        assert caught[0] is request.wait()
    else:
        assert "MPI_THREAD_MULTIPLE" in caught[0], caught
assert (request.wait() == summed(100_000)).all()
other.close()
print("right")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_right_at_every_thread_level(level, tmp_path):
    source = f"LEVEL = {level.upper()!r}\n" + RIGHT_AT_ANY_LEVEL
    out = run_program(3, source, tmp_path, MPI4PY_RC_THREAD_LEVEL=level)
    assert out.count("right") == 3, out


def test_overlapping_memory_is_refused_on_every_rank_however_fast_the_call_is(tmp_path):
    out = run_program(2, """
x, other = mine(100), mine(100)
request = coll.iallreduce(x)
time.sleep(0.2 * rank)                     # complete on one rank, maybe not on the other
elsewhere = coll.Communicator()
for act in (lambda: coll.allreduce(x), lambda: coll.iallreduce(x[50:]),
            lambda: coll.allreduce(other, out=x), lambda: coll.broadcast(x[::-1]),
            lambda: elsewhere.allreduce(x), lambda: coll.allgather(x)):
    assert "wait for it first" in raised(ValueError, act)
assert (coll.allreduce(other) == summed(100)).all()
assert (request.wait() == summed(100)).all()
assert (coll.allreduce(x) == size * summed(100)).all()

source, out = mine(10), np.empty(10, np.float32)         # two may read the same memory
first = coll.iallreduce(source, out=out)
second = coll.iallreduce(source, op="max", out=np.empty(10, np.float32))
assert first.wait() is out and (out == summed(10)).all() and (source == mine(10)).all()
assert (second.wait() == mine(10) / (rank + 1) * size).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_every_kind_of_tensor_gives_what_the_blocking_call_gives(tmp_path):
    out = run_program(3, """
def tensors():
    grid = np.zeros((20, 30), np.float64)
    grid[::2, ::3] = mine(100, np.float64).reshape(10, 10)
    return [mine(1000), grid[::2, ::3], grid.T[::-3, ::-2], rank + 1, 1.5 * rank, True,
            np.float32(rank), mine(5, np.int8), np.array(rank + 1.0), np.empty((0, 3)),
            {"w": mine(6).reshape(2, 3), "b": [mine(3, np.int64), rank]}, mine(9, np.complex64)]

def flat(x):
    if isinstance(x, dict):
        x = [v for k in sorted(x) for v in flat(x[k])]
    return [v for y in x for v in flat(y)] if isinstance(x, list) else [np.asarray(x)]

for op in ("sum", "mean"):
    for k in range(len(tensors())):
        if op == "mean" and k == 5:
            continue
        a, b = tensors()[k], tensors()[k]
        want, request = coll.allreduce(a, op=op), coll.iallreduce(b, op=op)
        got = request.wait()
        for x, y in zip(flat(want), flat(got), strict=True):
            assert x.dtype == y.dtype and x.tobytes() == y.tobytes(), (op, k)
        if isinstance(b, np.ndarray):
            assert got is b

try:
    import jax.numpy as jnp
except ImportError:
    print("right")
    raise SystemExit
x = jnp.asarray(mine(10))
y = coll.iallreduce(x, op="mean").wait()
assert type(y) is type(x) and (np.asarray(y) == summed(10) / size).all() and (x == mine(10)).all()
print("right")
""", tmp_path)
    assert out.count("right") == 3, out


def test_buffers_of_dropped_requests_and_temporaries_are_kept(tmp_path):
    out = run_program(2, """
for k in range(50):
    request = coll.iallreduce(np.ones(300_000, np.float32) * (rank + k))
    gc.collect()
    junk = [np.full(300_000, np.nan, np.float32) for _ in range(3)]
    assert (request.wait() == size * k + total - size).all()
results = np.zeros((20, 50_000))
for k in range(20):
    results[k] = rank + k
    coll.iallreduce(results[k])            # the handle is dropped at once
    gc.collect()
coll.barrier()
coll.allreduce(1)
assert (results == size * np.arange(20)[:, None] + total - size).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out
    assert out.count("was never waited for") == 10 and out.count("and 15 more") == 2, out


def test_requests_say_what_they_are(tmp_path):
    out = run_program(2, """
if rank:
    time.sleep(1)
request = coll.iallreduce(mine(12), op="max")
if rank == 0:
    text = repr(request)
    assert "call 1: allreduce(float32[12], op=max" in text and "pending" in text, text
    assert request.test() is False
    start = time.monotonic()
    message = raised(coll.StallError, lambda: request.wait(timeout=0.2))
    assert time.monotonic() - start < 0.9
    assert "call 1: allreduce(float32[12]" in message and "not arrived: [1]" in message, message
result = request.wait(timeout=30)
assert (result == mine(12) / (rank + 1) * size).all() and result is request.wait(timeout=0)
assert "complete" in repr(request)
assert (coll.allreduce(mine(12)) == summed(12)).all()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_an_error_is_raised_by_each_wait_and_ends_the_later_requests(tmp_path):
    out = run_program(2, """
comm = coll.Communicator()
bad = comm.iallreduce(mine(12 if rank else 10), algorithm="ring")
later = comm.iallreduce(mine(3))
for attempt in range(2):
    text = raised(coll.MPIError, bad.wait)
    assert "step" in text and "COLLECTIVES_CHECK=1" in text, text
assert "step" in raised(coll.MPIError, bad.test)
assert "not started" in raised(coll.MPIError, later.wait)
text = raised(RuntimeError, lambda: comm.allreduce(mine(2)))
assert "broken" in text and "call 1: allreduce" in text, text
comm.close()
assert (coll.allreduce(mine(5)) == summed(5)).all()      # others are not
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def test_call_numbers_beyond_32_bits_are_like_any_other(tmp_path):
    out = run_program(3, """
world = coll.world()
coll.barrier()
world.lanes.by_index[0].number = 2**31 - 3
for k in range(20):
    assert (coll.allreduce(mine(40_000 + k)) == summed(40_000 + k)).all()
    assert (coll.iallreduce(mine(100)).wait() == summed(100)).all()
if rank == 2:
    time.sleep(1)
request = coll.iallreduce(mine(5))
assert f"call {2**31 - 3 + 41}:" in repr(request)
if rank == 0:                              # the numbers travel between the ranks, too
    assert "not arrived: [2]" in raised(coll.StallError, lambda: request.wait(timeout=0.2))
assert (request.wait() == summed(5)).all()
print("right")
""", tmp_path)
    assert out.count("right") == 3, out
