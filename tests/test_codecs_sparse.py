"""What TopK and Threshold promise beside what `test_sparse_kernels` says of each kernel."""

from fractions import Fraction

import numpy as np
import pytest

from collectives.kernels.codec import Emit
from collectives.kernels.codecs import Threshold, TopK, pairs
from collectives.kernels.fused import fused_kernel
from tests.test_sparse_kernels import CALL

DTYPES = [np.float16, np.float32, np.float64]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
EVERY = [TopK(0.1), Threshold(0.5), Threshold(relative=1.0)]
every_codec = pytest.mark.parametrize("codec", EVERY, ids=repr)


def accumulator(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def encoded(codec, x, residual=None):
    """The wire, as long as it says it is."""
    wire = np.full(codec.wire_nbytes(x.size), 0xAA, np.uint8)
    codec.encode(x, residual, wire)
    return wire[:wire[:8].view(np.int64)[0]] if codec.variable and x.size else wire


def decoded(codec, wire, n, dtype=np.float32):
    out = np.full(n, np.nan, dtype)
    codec.decode(wire, out)
    return out


# Parameters

@pytest.mark.parametrize("density", [0, 0.0, -0.1, 1.01, 2, np.inf, np.nan, "0.1", None, True])
def test_other_densities_are_refused(density):
    with pytest.raises(ValueError, match=r"density=.*expected a number in \(0, 1\]"):
        TopK(density)


@pytest.mark.parametrize("field", ["value", "relative"])
@pytest.mark.parametrize("number", [0, -1.0, np.inf, np.nan, 1e-46, 1e39, "1", True])
def test_other_thresholds_are_refused(field, number):
    with pytest.raises(ValueError, match=f"{field}=.*expected a number > 0"):
        Threshold(**{field: number})


@pytest.mark.parametrize("both", [{}, {"value": 1.0, "relative": 1.0}])
def test_a_threshold_is_either_absolute_or_relative(both):
    with pytest.raises(ValueError, match="exactly one of the two"):
        Threshold(**both)


@pytest.mark.parametrize("codec", [*EVERY, TopK(1), TopK(np.float32(0.5)), Threshold(np.int64(2))],
                         ids=repr)
def test_repr_evaluates_to_the_codec(codec):
    assert eval(repr(codec), {"TopK": TopK, "Threshold": Threshold}) == codec


def test_a_chunk_that_indices_cannot_tell_apart_is_refused():
    for codec in EVERY:
        with pytest.raises(ValueError, match=f"{codec.name}: 4294967297 elements"):
            codec.wire_nbytes(2**32 + 1)
    assert TopK(0.01).wire_nbytes(2**32) == 8 * 42949672


@pytest.mark.parametrize("density", ["0.29", "0.57", "0.01", "0.07", "0.001", "0.3", "1", "1e-9"])
def test_as_many_are_kept_as_decimals_say(density):
    codec = TopK(float(density))
    for n in [1, 2, 99, 100, 101, 1000, 10_007, 2**20, 10**9, 4 * 10**9]:
        assert codec.kept(n) == max(1, int(Fraction(density) * n)), n
    assert codec.kept(0) == codec.wire_nbytes(0) == 0


# Wires

X = np.array([1, -4, 0.5, 4, -0.0, 2.5, -3, 1e-3, 64, -0.25], np.float32)
FROZEN = [
    (TopK(0.2), "000080c0 00008042 01000000 08000000"),  # -4 and 64, not the 4 that ties
    (TopK(0.4), "000080c0 00008040 000040c0 00008042 01000000 03000000 06000000 08000000"),
    (Threshold(4.0), "20000000 00000000 000080c0 00008040 00008042 01000000 03000000 08000000"),
    (Threshold(relative=1.0), "10000000 00000000 00008042 08000000"),  # 20.5
    (Threshold(65.0), "08000000 00000000"),
    (Threshold(1.0), "30000000 00000000 0000803f 000080c0 00000000 00008040 00000000 00002040"
                     "000040c0 00000000 00008042 00000000"),
]


@pytest.mark.parametrize("codec, wire", FROZEN, ids=lambda value: repr(value)[:30])
@every_dtype
def test_wire_bytes_are_frozen(codec, wire, dtype):
    if dtype == np.float16:  # has no 1e-3, which is in no wire
        assert np.float16(X[7]) != X[7]
    assert encoded(codec, X.astype(dtype)).tobytes() == bytes.fromhex(wire)


def test_every_nan_travels_as_one():
    quiet = bytes.fromhex("0000c07f")
    for pattern in (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF):
        x = np.array([pattern], np.uint32).view(np.float32)
        assert encoded(TopK(1), x).tobytes() == quiet + bytes(4)
        assert encoded(Threshold(1.0), x)[8:].tobytes() == quiet


@pytest.mark.parametrize("density, ratio", [(0.01, 49), (0.001, 490)])
def test_the_wire_of_topk_is_as_small_as_stated(density, ratio):
    for n in (100_000, 100_003, 1_000_000):
        assert TopK(density).wire_nbytes(n) * ratio <= 4 * n


def test_a_threshold_that_keeps_much_costs_no_more_than_the_numbers():
    for m in range(0, 101):
        x = np.zeros(100, np.float32)
        x[:m] = 1
        assert encoded(Threshold(1.0), x).size == 8 + min(8 * m, 400)


# Errors and residuals

@every_codec
@every_dtype
def test_errors_are_within_the_bound(codec, dtype):
    rng = np.random.default_rng(0)
    for n in (1, 7, 1000):
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)).astype(dtype)
        for y in (x, np.zeros_like(x), np.full_like(x, 0.4), (x * 2.0**-14).astype(dtype)):
            out, bound = decoded(codec, encoded(codec, y), n, np.float64), codec.error_bound(y)
            assert (np.abs(out - y) <= bound).all() and bound.shape == y.shape
            assert (bound <= np.abs(y.astype(np.float64)) * (1 + 2.0**-24) + 2.0**-149).all()


@every_codec
def test_a_float64_beyond_float32_is_sent_as_far_as_it_goes(codec):
    x, residual = np.full(20, 1e-3), np.zeros(20)
    x[3], x[7] = 1e300, -3.5e38
    out = decoded(codec, encoded(codec, x, residual), 20, np.float64)
    limit = float(np.finfo(np.float32).max)
    assert out[[3, 7]].tolist() == [limit, -limit]
    np.testing.assert_array_equal(residual, x - out)
    assert (np.abs(out - x) <= codec.error_bound(x)).all()


@every_codec
@every_dtype
def test_what_is_dropped_is_sent_once_it_has_grown(codec, dtype):
    rng = np.random.default_rng(1)
    x = (rng.integers(-8, 9, 200) / 8).astype(dtype)
    residual, total = np.zeros(200, accumulator(dtype)), np.zeros(200)
    for _ in range(60):
        total += decoded(codec, encoded(codec, x, residual), 200, np.float64)
    np.testing.assert_array_equal(total + residual, 60 * x.astype(np.float64))
    assert (np.abs(residual) <= 15).all() and (total[x != 0] != 0).all()


@every_codec
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_and_not_kept(codec, odd):
    rng = np.random.default_rng(2)
    for at in (0, 17, 299):
        x, old = rng.standard_normal(300).astype(np.float32), np.full(300, 0.5, np.float32)
        came, residual = np.zeros(300, np.float32), old.copy()
        came[at] = odd
        wire = np.zeros(codec.wire_nbytes(300), np.uint8)
        codec.decode_add_encode(encoded(codec, came), x, residual, wire)
        out = decoded(codec, wire, 300)
        assert np.flatnonzero(~np.isfinite(out)).tolist() == [at] and residual[at] == 0.5
        rest = np.arange(300) != at
        np.testing.assert_array_equal((out + residual)[rest], (x + old)[rest])


@every_codec
def test_a_residual_that_is_not_finite_is_sent_and_forgotten(codec):
    x, residual = np.ones(64, np.float32), np.zeros(64, np.float32)
    residual[9] = np.inf
    assert np.isinf(decoded(codec, encoded(codec, x, residual), 64)[9]) and residual[9] == 0


# Damage

@pytest.mark.parametrize("codec", [TopK(0.2), Threshold(4.0)], ids=repr)
def test_indices_beyond_the_end_are_skipped(codec):
    wire = encoded(codec, X)
    last = wire[-4:].copy()
    for bad in (10, 2**31, 2**32 - 1):
        wire[-4:] = np.array([bad], np.uint32).view(np.uint8)
        memory = np.full(30, 7, np.float32)
        codec.decode(wire, memory[10:20])
        assert (memory[:10] == 7).all() and (memory[20:] == 7).all()
        assert memory[11] == -4 and memory[18] == 0
        memory[:] = 7
        codec.decode_add(wire, memory[10:20])
        assert np.flatnonzero(memory != 7).tolist() in ([11], [11, 13])
    wire[-4:] = last
    np.testing.assert_array_equal(decoded(codec, wire, 10), decoded(codec, encoded(codec, X), 10))


@pytest.mark.parametrize("nbytes", [-2**63, -1, 0, 7, 8, 9, 47, 48, 49, 2**62])
def test_a_wrong_length_leads_nowhere_else(nbytes):
    memory = np.full(30, 7, np.float32)
    wire = np.zeros(48, np.uint8)
    wire[:8] = np.array([nbytes], np.int64).view(np.uint8)
    address = fused_kernel(Threshold(1.0), Emit.DECODE, True, False, "", "float32")
    CALL(address)(memory[10:].ctypes.data, 0, wire.ctypes.data, 0, 0, 10, 1, 0, 1.0)
    assert (memory[:10] == 7).all() and (memory[20:] == 7).all() and not memory[10:20].any()


# The scalar function that other processors compile

def test_the_core_sends_what_the_host_sends():
    core = pairs.cores(lambda function: function).sent
    x = np.array([0.1, -0.0, 1e-50, 3.5e38, -1e300, np.inf, -np.inf, np.nan, 2.0**-149, 1.5])
    wire = encoded(TopK(1), x)[:40].view(np.float32)
    with np.errstate(invalid="ignore"):
        same = np.array([core(v) for v in x], np.float32)
    np.testing.assert_array_equal(wire.view(np.uint32), same.view(np.uint32))
