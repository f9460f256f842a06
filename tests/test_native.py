"""algorithm="native" gives what our own schedules give, bit for bit, and waits as they do."""

import numpy as np
import pytest

from collectives import native
from collectives.calls import Part
from tests.programs import run_program

AS_OURS = """
from collectives import native
native.LIMIT = native.PIECE = LIMIT
COUNTS = (0, 1, 7, 23)
names = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64",
         "complex64", "complex128"]
try:
    import ml_dtypes
    names.append(ml_dtypes.bfloat16)
except ImportError:
    pass

def same(act):
    ours, theirs = act("auto"), act("native")
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes(), (act, ours, theirs)

for name in names:
    kind = np.dtype(name).kind
    ops = {"b": ("and", "or"), "c": ("sum", "mean", "prod")}.get(
        kind, ("sum", "mean", "max", "min", "prod"))
    for count in COUNTS:
        x = np.arange(count) * (rank + 2) % 5 - (2 if kind in "if" else 0)
        x = (x % 3 == 0) if kind == "b" else x.astype(name)
        for op in ops:
            same(lambda a: coll.allreduce(x.copy(), op, algorithm=a))
            same(lambda a: coll.reduce(x.copy(), op, 1, algorithm=a))
            same(lambda a: coll.reduce_scatter(x.copy(), op, algorithm=a))
        same(lambda a: coll.broadcast(x.copy(), 1, algorithm=a))
        same(lambda a: coll.allgather(x.copy(), algorithm=a))
        same(lambda a: coll.iallreduce(x.copy(), ops[0], algorithm=a).wait())

# NaN on one rank, in the middle of infinities and zeros of both signs.
for name in ("float16", "float32", "float64"):
    x = np.array([np.nan if rank == 1 else 1, rank - 1, np.inf * (1 - 2 * (rank == 0)), -rank],
                 name)
    for op in ("max", "min"):
        got = coll.allreduce(x.copy(), op, algorithm="native")
        rows = coll.allgather(x)
        want = getattr(np, op + "imum").reduce(rows)
        assert np.array_equal(got, want, equal_nan=True), (got, want)

# One rounding, at the end: 2048 + 1 + 1 would stay 2048 if each sum were rounded to float16.
x = np.array([2048 if rank == 0 else 1], np.float16)
assert coll.allreduce(x, algorithm="native")[0] == 2050
print("right")
"""


@pytest.mark.parametrize("limit", [1 << 30, 5], ids=["whole", "split"])
def test_it_is_bitwise_what_our_schedules_give(limit, tmp_path):
    out = run_program(3, AS_OURS.replace("LIMIT\n", f"{limit}\n", 1), tmp_path)
    assert out.count("right") == 3, out


def test_a_late_rank_is_reported_and_the_call_can_be_interrupted(tmp_path):
    out = run_program(2, """
import signal
coll.barrier()
if rank == 1:
    time.sleep(5)
    raise SystemExit
signal.setitimer(signal.ITIMER_REAL, 2.5)
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
start = time.monotonic()
raised(KeyboardInterrupt, lambda: coll.allreduce(mine(10), algorithm="native"))
assert time.monotonic() - start < 4
assert "broken" in raised(RuntimeError, coll.barrier)
print("interrupted")
os._exit(0)
""", tmp_path, status="any", COLLECTIVES_STALL_SECONDS="1")
    assert "interrupted" in out and "ranks that have not arrived: [1]" in out, out
    assert "MPI's own collective" in out, out


@pytest.mark.parametrize("op", ["max", "min"])
def test_integers_in_the_order_of_floats_put_nan_first(op):
    x = np.array([-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf, np.nan, -np.nan], np.float32)
    keys = native._ordered(x, Part("float32", op, (x.size,), x, x))
    assert (np.diff(keys[:6].astype(np.int64)) > 0).all()
    assert keys[6] == keys[7] == getattr(np, op)(keys)
    back = native._flipped(keys).view(np.float32)
    assert back[:6].tobytes() == x[:6].tobytes() and np.isnan(back[6:]).all()


def test_integer_means_truncate_toward_zero():
    totals = np.array([-7, -6, -1, 0, 1, 6, 7], np.int64)
    assert native._truncated(totals, 3).tolist() == [-2, -2, 0, 0, 0, 2, 2]
