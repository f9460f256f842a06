"""What users of other compressed all-reduces reported, as tests with an environment of their own.

Those that only need ranks are in mpi/test_compression_reports.py and mpi/test_compression_steps.py.
"""

import numpy as np
import pytest

from collectives.kernels.codecs import TopK
from tests.programs import run_program

# K08: bytedance/byteps#299: an index in the tensor's 16-bit type wraps beyond 32767.


@pytest.mark.parametrize("n", [70_000, 2**16, 2**16 + 1])
def test_indices_of_a_float16_tensor_are_as_wide_as_its_length_needs(n):
    x = np.zeros(n, np.float16)
    x[-1], x[40_000] = 5, -3
    codec = TopK(2 / n)
    wire, out = np.empty(codec.wire_nbytes(n), np.uint8), np.full(n, np.nan, np.float16)
    codec.encode(x, None, wire)
    assert wire[8:].view(np.uint32).tolist() == [40_000, n - 1]
    codec.decode(wire, out)
    np.testing.assert_array_equal(out, x)


def test_indices_beyond_2_to_the_31_are_read_as_they_are(tmp_path):
    n, at = 2**31 + 16, [2**31 - 1, 2**31 + 15]
    codec = TopK(2 / n)
    wire = np.concatenate([np.array([1.5, -2.5], np.float32).view(np.uint8),
                           np.array(at, np.uint32).view(np.uint8)])
    assert wire.nbytes == codec.wire_nbytes(n)
    acc = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=n)  # a few pages of it exist
    codec.decode_add(wire, acc)
    assert acc[at].tolist() == [1.5, -2.5]
    assert not acc[:1000].any() and not acc[[0xFFFF, 2**31 - 2, 2**31, -2]].any()


def test_a_tensor_that_indices_cannot_number_is_refused():
    assert TopK(2**-31).wire_nbytes(2**32) == 8 * 2
    with pytest.raises(ValueError, match="4294967297 elements"):
        TopK(2**-31).wire_nbytes(2**32 + 1)


# K14: apache/mxnet#20007, #15252: the receiver does not know the sender's parameters.

MISMATCHES = """
def differ(rank_0, rank_1, *words):
    mine = {"compression": rank_1 if rank else rank_0, "residual": np.zeros(600, np.float32)}
    text = raised(coll.MismatchError, lambda: coll.allreduce(np.ones(600, np.float32), **mine))
    assert "rank 0: " in text and ("rank 1: " if size == 2 else "ranks 1, 2: ") in text, text
    for word in words:
        assert word in text, (word, text)
    assert not mine["residual"].any()

differ("threshold:0.3", "threshold:0.5", "Threshold(value=0.3", "Threshold(value=0.5")
differ("topk:0.01", "topk:0.02", "density=0.01", "density=0.02")
differ("int8", "int8:block=64", "block=256", "block=64")
differ("int8", "int8:stochastic=True", "stochastic=False", "stochastic=True")
differ("sign", "ternary", "Sign(", "Ternary(")
differ("int8", None, "compression=Int8(", "compression=None")
differ("threshold:0.3", coll.Threshold(relative=0.3), "value=0.3", "relative=0.3")
x = np.full(600, np.float32(size + rank))
assert (coll.allreduce(x, compression="float16") == size * size + total - size).all()
print("right")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_codecs_that_differ_are_named_on_every_rank_before_anything_is_sent(ranks, tmp_path):
    out = run_program(ranks, MISMATCHES, tmp_path, COLLECTIVES_CHECK="1")
    assert out.count("right") == ranks, out


BLOCKS = """
def reduced(count, *blocks):
    codec = coll.Int4(block=blocks[rank])
    x = np.random.default_rng(count).standard_normal((size, count)).astype(np.float32)
    residual, comm = np.zeros(count, np.float32), coll.Communicator()
    try:
        result = comm.allreduce(x[rank].copy(), compression=codec, residual=residual)
    except coll.MPIError as error:
        assert "bytes, expected" in str(error) or "truncat" in str(error).lower(), error
        assert "COLLECTIVES_CHECK=1" in str(error), error
        return "refused"
    finally:
        comm.close()
    # Rank 1 encodes; rank 0 owns the only block, adds, with rounding, and encodes.
    off = codec.error_bound(x[1]) + 2.0**-24 * np.abs(x).sum(axis=0)
    off += codec.error_bound(np.abs(x).sum(axis=0) + off)
    assert (np.abs(result - x.sum(axis=0, dtype=np.float64)) <= off).all(), count
    return "right"

# One block, which is the same for both, or wires of other lengths.
for count in (1, 5, 8):
    assert reduced(count, 8, 256) == "right", count
for count in (9, 16, 255, 256, 257, 1000, 40_003):
    assert reduced(count, 8, 256) == "refused", count
print("right")
"""


def test_blocks_that_differ_are_refused_by_the_lengths_of_wires(tmp_path):
    out = run_program(2, BLOCKS, tmp_path, COLLECTIVES_CHECK="0")
    assert out.count("right") == 2, out
