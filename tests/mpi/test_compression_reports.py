"""What users of other compressed all-reduces reported, as tests of ours.

What was reported of many steps is in test_compression_steps.py.
"""

import numpy as np
import pytest

import collectives as coll
from collectives import dtypes
from tests.compression_matrix import ALGORITHMS, CODECS, DTYPES
from tests.layouts import numpy_dtype
from tests.mpi.one_process import chunks, direct, normal, reduced, total
from tests.mpi.reference import RANK, SIZE, same_on_all_ranks
from tests.mpi.test_compression import COMM, check_conservation, summed

DENSE = CODECS[:6]
several_ranks = pytest.mark.skipif(SIZE < 2, reason="one rank encodes nothing")
every_codec = pytest.mark.parametrize("name", CODECS)


@pytest.fixture(autouse=True)
def poisoned_scratch():
    coll.world().lanes.mine().arena.poison()


# K01: pytorch/ao#4713, vipshop/cache-dit#1097, HomebrewML/HeavyBall#55: 0 / 0 in the scale.

@every_codec
def test_zeros_are_exactly_zero_and_leave_nothing(name):
    residual = np.zeros(1000, np.float32)
    for op in ("sum", "mean"):
        result = reduced(np.zeros(1000, np.float32), name, residual, op)
        assert not result.any() and not residual.any()


@every_codec
def test_zeros_on_one_rank_do_not_disturb_what_others_send(name):
    x, old = normal(SIZE, 1000, seed=1)[RANK] * (RANK > 0), np.zeros(1000, np.float32)
    new = old.copy()
    result = reduced(x, name, new)
    check_conservation(x, old, new, result, "sum")
    assert same_on_all_ranks(result)


@every_codec
def test_a_block_of_zeros_beside_others_is_exactly_zero(name):
    block = getattr(coll.as_codec(name), "block", 256)
    x = normal(SIZE, 3, block, seed=2)[RANK]
    x[1] = 0
    residual = np.zeros_like(x)
    result = reduced(x, name, residual)
    assert not result[1].any() and not residual[1].any()
    check_conservation(x, np.zeros_like(x), residual, result, "sum")


# K02: dropbox/hqq#159, harvard-edge/cs249r_book#1444: max = min, and so a zero point of NaN, or 0.

@pytest.mark.parametrize("count, value", [(1000, 5.0), (1000, -3.0), (1, 7.0)])
@pytest.mark.parametrize("name", DENSE)
def test_a_constant_is_recovered_within_the_bound(name, count, value):
    codec, x = coll.as_codec(name), np.full(count, value, np.float32)
    first = codec.error_bound(x)
    # Every other rank encodes its values, the owner of a chunk adds, with rounding, and encodes.
    off = SIZE * (first + SIZE * abs(value) * 2.0**-24)
    off += codec.error_bound(SIZE * np.abs(x) + off) if name != "sign" else first + off
    result = reduced(x, name)
    assert (np.abs(result - SIZE * value) <= off).all()
    assert (result * value > 0).all()  # nor NaN


# K04: vllm-project/vllm#55345, ROCm/rocm-systems#9556: one value overflows in the wire's type.

@several_ranks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("holder", [0, SIZE - 1])
def test_what_float16_cannot_hold_saturates_and_the_rest_stays_in_the_residual(holder, dtype):
    kind = numpy_dtype(dtype)
    x, old = np.ones(5 * SIZE, kind), np.zeros(5 * SIZE, np.float32)
    if holder == RANK:
        x[0], x[1] = 1e30, -7e4
    residual = old.copy()
    result = reduced(x, "float16", residual)
    np.testing.assert_array_equal(result[:2], np.array([65504, -65504], kind))
    assert (result[2:] == SIZE).all() and same_on_all_ranks(result)
    assert np.isfinite(residual).all()
    check_conservation(x, old, residual, result, "sum")


# K05: pytorch/pytorch#153340, NVIDIA/Model-Optimizer#359: NaN is quantised to something, or ranks
# take different branches.

@every_codec
def test_nan_and_inf_on_one_rank_are_seen_by_all_and_forgotten_in_the_next_step(name):
    residual = np.zeros(1000, np.float32)
    for step, (at, bad) in enumerate([(5, np.nan), (6, np.inf)]):
        x = normal(SIZE, 1000, seed=step)[RANK]
        x[at] = bad if min(1, SIZE - 1) == RANK else x[at]
        result = reduced(x, name, residual)
        assert not np.isfinite(result[at]) and same_on_all_ranks(result)
        assert np.isfinite(residual).all()
    x, old = normal(SIZE, 1000, seed=9)[RANK], residual.copy()
    result = reduced(x, name, residual)
    check_conservation(x, old, residual, result, "sum")


def test_a_nan_does_not_stay_in_the_velocity_either():
    feedback = coll.ErrorFeedback(momentum=0.5)
    for step in range(3):
        x = normal(SIZE, 1000, seed=step)[RANK]
        x[5] = np.nan if (step, RANK) == (1, SIZE - 1) else x[5]
        old = feedback["w"].residual
        old = np.zeros_like(x) if old is None else old.copy()
        result = reduced(x, "int8", feedback["w"])
        assert np.isfinite(result).all() == (step != 1)
    contributed = feedback["w"].velocity
    check_conservation(contributed, old, feedback["w"].residual, result, "sum")


# K08: bytedance/byteps#299: an index in the tensor's 16-bit type wraps beyond 32767.

@pytest.mark.parametrize("length", [70_000, 2**16, 2**16 + 1])
def test_topk_finds_elements_of_float16_wherever_they_are_in_a_chunk(length):
    x = np.zeros((SIZE, length), np.float16)
    x[:, -1], x[:, 40_000] = 5, -3
    residual = np.zeros(x.shape, np.float32)
    np.testing.assert_array_equal(reduced(x, coll.TopK(2 / length), residual), SIZE * x)
    assert not residual.any()


def test_topk_finds_two_elements_of_a_float16_tensor_of_70000():
    x, residual = np.zeros(70_000, np.float16), np.zeros(70_000, np.float32)
    x[69_999], x[40_000] = 5, -3
    np.testing.assert_array_equal(reduced(x, coll.TopK(2 * SIZE / 70_000), residual), SIZE * x)
    assert not residual.any()


# K09: horovod/horovod#679, sands-lab/grace#17: payloads of different lengths, or of none.

def nothing_all_or_some(role, count):
    """For a threshold of 1: below it, above it, or alternately; sums of such are exact."""
    return {0: np.full(count, 0.125, np.float32), 1: np.full(count, 2, np.float32),
            2: np.tile(np.array([3, -0.25], np.float32), count)[:count]}[role % 3]


@pytest.mark.parametrize("turn", range(3))
def test_ranks_may_keep_none_all_or_some_of_their_elements(turn):
    rows = np.stack([nothing_all_or_some(rank + turn, 1001) for rank in range(SIZE)])
    sent = np.where(np.abs(rows) >= 1, rows, 0)
    kept_back = rows - sent
    want = np.empty(1001, np.float32)
    for owner, chunk in enumerate(chunks(coll.Threshold(1.0), 1001)):  # adds to all of its own
        v = sent[:, chunk].sum(axis=0) - sent[owner, chunk] + rows[owner, chunk]
        want[chunk] = np.where(np.abs(v) >= 1, v, 0) if SIZE > 1 else v
        kept_back[owner, chunk] = v - want[chunk]
    residual = np.zeros(1001, np.float32)
    np.testing.assert_array_equal(reduced(rows[RANK], "threshold:1.0", residual), want)
    np.testing.assert_array_equal(residual, kept_back[RANK])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_lost_while_the_numbers_of_elements_kept_change(algorithm):
    residual, due, got = np.zeros(5000, np.float32), np.zeros(5000), np.zeros(5000)
    for turn in range(9):
        x = nothing_all_or_some(RANK + turn, 5000)
        due, got = due + x, got + reduced(x, "threshold:1.0", residual, algorithm=algorithm)
    np.testing.assert_array_equal(summed(due) - summed(residual), got)


# K10: deepspeedai/DeepSpeed#5056, #813: lengths that fill neither bytes nor ranks; shapes.

@pytest.mark.parametrize("codec", [coll.Sign(), coll.Ternary(), coll.Int4()], ids=repr)
def test_any_length_and_shape_is_reduced_without_what_lies_beside_it(codec):
    lengths = range(1, 41, 1 if SIZE <= 5 else 4)
    longer = [n + codec.block * (n % (SIZE + 1)) for n in lengths[::3]]  # end on other ranks
    found = []
    for shape in [*((n,) for n in (*lengths, *longer)), (3, 5), (2, 3, 7)]:
        rows = normal(SIZE, int(np.prod(shape)), seed=len(shape)) + np.float32(0.5)
        residuals = (rows[:, ::-1] / 8).copy()
        x, residual = (np.full(rows[0].size + 16, odd, np.float32) for odd in (1e30, np.nan))
        x[8:-8], residual[8:-8] = rows[RANK], residuals[RANK]
        got = coll.allreduce(x[8:-8].reshape(shape), compression=codec,
                             residual=residual[8:-8].reshape(shape), algorithm="direct")
        assert got.shape == shape
        found.append((x, residual, direct(codec, rows, residuals), residuals[RANK]))
        coll.world().lanes.mine().arena.poison()
    for x, residual, result, kept in found:
        np.testing.assert_array_equal(x[8:-8], result)
        np.testing.assert_array_equal(residual[8:-8], kept)
        assert (np.delete(x, np.s_[8:-8]) == np.float32(1e30)).all()
        assert np.isnan(np.delete(residual, np.s_[8:-8])).all()


# K13: pytorch/pytorch#63375, IST-DASLab/torch_cgx#1: full precision was sent all along, or garbage.

@several_ranks
@pytest.mark.parametrize("name, most", [("float16", 1 / 2), ("int8", 1 / 4), ("sign", 1 / 32)])
def test_bytes_sent_are_counted_and_every_encoding_is_within_its_bound(name, most, set_segment):
    set_segment(1 << 22)  # one chunk for each rank
    count, codec = 1_000_000, coll.as_codec(name)
    x = normal(count, seed=RANK)
    before = coll.world().sent_nbytes
    result = reduced(x, name)
    sent = coll.world().sent_nbytes - before
    parts = chunks(codec, count)
    sizes = [codec.wire_nbytes(part.stop - part.start) for part in parts]
    assert sent == sum(sizes) + (SIZE - 2) * sizes[RANK]
    header = 4 / 128 if name == "sign" else 0.02  # a scale for 1024 bits
    uneven = 2 * (SIZE - 1) * 4 * codec.align  # of two chunks, one unit more
    assert sent <= most * (1 + header) * (2 * (SIZE - 1) * 4 * count / SIZE + uneven)
    wire, decoded = np.empty(codec.wire_nbytes(count), np.uint8), np.empty(count)
    codec.encode(x, None, wire)
    codec.decode(wire, decoded)
    assert (np.abs(decoded - x) <= codec.error_bound(x)).all()
    rows = np.stack(COMM.alltoall([x[part] for part in parts]))  # what all have of this chunk
    mine = total(codec, RANK, rows, np.zeros_like(rows))
    assert (np.abs(result[parts[RANK]].astype(np.float64) - mine) <= codec.error_bound(mine)).all()


# K14: apache/mxnet#20007, #15252: the receiver does not know the sender's threshold; float16.

def test_a_threshold_is_the_senders_own_business():
    for low, high in ((0.3, 0.3), (0.3, 0.5)):
        t = high if RANK % 2 else low
        x = np.random.default_rng(RANK).integers(-64, 65, 3000).astype(np.float32) / 64
        residual = np.zeros_like(x)
        result = reduced(x, coll.Threshold(t), residual)
        np.testing.assert_array_equal(result, summed(x) - summed(residual))
        assert (np.abs(residual) < np.float32(t)).all() and same_on_all_ranks(result)
        if SIZE > 1:
            assert np.abs(result[result != 0]).min() >= np.float32(low)


# That every float type is right: test_compression.py.

@every_codec
def test_every_other_type_is_refused_by_name(name):
    for dtype in set(dtypes.NAMES) - set(DTYPES):
        with pytest.raises(TypeError, match=dtype):
            reduced(np.ones(300, dtype), name)
