"""COLLECTIVES_CHECK=1: different calls raise on every rank, and then all goes on."""

import numpy as np
import pytest

from collectives import check
from collectives.errors import MismatchError
from tests.programs import run_program

MISMATCHES = """
def differ(rank_0, rank_1, *words):
    start = time.monotonic()
    text = raised(coll.MismatchError, rank_0 if rank == 0 else rank_1)
    assert time.monotonic() - start < 10
    for word in ("rank 0: ", "rank 1: ", *words):
        assert word in text, (word, text)
    assert (coll.allreduce(mine(7)) == summed(7)).all()

coll.allreduce(mine(7))                    # compiles, which is not what is timed
f4, f8 = np.ones(4, np.float32), np.ones(2, np.float64)
differ(lambda: coll.allreduce(f4), lambda: coll.allreduce(f8), "float32[4]", "float64[2]")
differ(lambda: coll.allreduce(f4), lambda: coll.allreduce(f4.reshape(2, 2)), "float32[2, 2]")
differ(lambda: coll.allreduce(f4), lambda: coll.broadcast(f4), "allreduce(", "broadcast(")
differ(lambda: coll.allreduce(f4), lambda: coll.barrier(), "int8[1]")
differ(lambda: coll.allreduce(f4), lambda: coll.allreduce(f4, op="max"), "op=sum", "op=max")
differ(lambda: coll.broadcast(f4, 0), lambda: coll.broadcast(f4, 1), "root=0", "root=1")
differ(lambda: coll.allreduce(f4, algorithm="ring"),
       lambda: coll.allreduce(f4, algorithm="double_binary_tree"), "runs as ring",
       "double_binary_tree")
many = [np.ones(4, np.float32) for _ in range(20)]
differ(lambda: coll.allreduce(many), lambda: coll.allreduce([*many[:19], f8]), "float64[2]")
a, b = np.ones(3, np.float32), np.ones(5, np.float32)
differ(lambda: (coll.allreduce(a), coll.allreduce(b)),
       lambda: (coll.allreduce(b), coll.allreduce(a)), "float32[3]", "float32[5]")
differ(lambda: coll.iallreduce(a).wait(), lambda: coll.iallreduce(b).wait(), "float32[3]")

# A call that only one rank rejects: the others hear of it, and the reason is given.
if rank == 0:
    assert "read-only" in raised((ValueError, coll.MismatchError), lambda: coll.allreduce(
        np.broadcast_to(np.float32(1), 4)))
else:
    assert "rank 0: call" in raised(coll.MismatchError, lambda: coll.allreduce(f4))

# Where all agree nothing is raised, in nonblocking calls too, in any order.
requests = [coll.iallreduce(mine(n)) for n in (5, 70_000, 9)]
for k in ((2, 1, 0) if rank else (0, 1, 2)):
    assert (requests[k].wait() == summed((5, 70_000, 9)[k])).all()
assert raised(ValueError, lambda: coll.allreduce(f4, op="sums"))       # the same error on all
print("right")
"""


def test_every_rank_raises_and_the_communicator_goes_on(tmp_path):
    out = run_program(2, MISMATCHES, tmp_path, COLLECTIVES_CHECK="1")
    assert out.count("right") == 2, out


@pytest.mark.parametrize("variable, values", [
    ("COLLECTIVES_SEGMENT", ("4096", "65536")), ("COLLECTIVES_ALGORITHM", ("ring", "direct"))])
def test_a_setting_that_differs_between_ranks_is_named(variable, values, tmp_path):
    out = run_program(3, f"""
os.environ[{variable!r}] = {values!r}[rank == 2]
from collectives.settings import settings
settings.cache_clear()
text = raised(coll.MismatchError, lambda: coll.allreduce(mine(100)))
assert "ranks 0, 1: call 1: allreduce(float32[100]" in text and "rank 2: call 1" in text, text
assert all(value in text for value in {values!r}), text
print("right")
""", tmp_path, COLLECTIVES_CHECK="1")
    assert out.count("right") == 3, out


def test_without_it_a_wrong_length_is_an_error_that_says_what_to_do(tmp_path):
    out = run_program(2, """
for algorithm in ("ring", "recursive_doubling"):
    comm = coll.Communicator()
    text = raised(coll.MPIError, lambda: comm.allreduce(mine(1000 << rank), algorithm=algorithm))
    assert "step" in text and "COLLECTIVES_CHECK=1" in text and f"rank {1 - rank}" in text, text
    assert "broken" in raised(RuntimeError, comm.barrier)
    comm.close()
print("right")
""", tmp_path)
    assert out.count("right") == 2, out


def exchange_of(*texts):
    """An allgather for `compare` in which each rank gives its text, and all are asked twice."""
    sent: list = []

    def exchange(x):
        sent.append(x)
        if len(sent) == 1:
            return np.stack([_head(text) for text in texts])
        rows = [np.frombuffer(text.encode().ljust(x.size, b"\0"), np.uint8) for text in texts]
        return np.stack(rows)
    return exchange


def _head(text):
    heads = []
    check.compare(lambda x: heads.append(x) or x[None, :], text, 0)
    return heads[0]


def test_descriptions_that_differ_late_are_shown_where_they_differ():
    common = "x" * 5000
    texts = [common + "left", common + "right", common + "left"]
    with pytest.raises(MismatchError) as info:
        check.compare(exchange_of(*texts), texts[0], 0)
    message = str(info.value)
    assert "ranks 0, 2: ..." in message and "left" in message and "right" in message
    assert len(message) < 1500


def test_equal_descriptions_are_exchanged_once():
    calls = []
    check.compare(lambda x: calls.append(x) or np.stack([x, x]), "same", 0)
    assert len(calls) == 1 and calls[0].nbytes == 24
