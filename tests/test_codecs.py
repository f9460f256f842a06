"""What every codec promises.  A new codec is done when it is in CODECS and this file passes."""

import ml_dtypes
import numpy as np
import pytest

from collectives.kernels.codecs import BFloat16, Float16, Int4, Int8, Sign, Ternary

CODECS = [Float16(), BFloat16(), Int8(), Int4(), Ternary(), Sign(),
          Ternary(block=72, stochastic=True)]
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SIZES = [0, 1, 2, 3, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 2049]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
Exact = np.longdouble  # holds sums of two float64 of like size without rounding


def accumulator(dtype):
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def numbers(n, dtype, seed=0):
    rng = np.random.default_rng([n, seed])
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)).astype(dtype)


def encoded(codec, x, residual=None):
    wire = np.full(codec.wire_nbytes(x.size), 0xAA, np.uint8)  # poison
    codec.encode(x, residual, wire)
    return wire


def decoded(codec, wire, n, dtype):
    out = np.full(n, np.nan, dtype)
    codec.decode(wire, out)
    return out


def check_conservation(codec, x, old):
    """decode(wire) + new residual = x + old residual, to the two roundings of the accumulator."""
    residual = old.copy()
    out = decoded(codec, encoded(codec, x, residual), x.size, residual.dtype)
    v = x.astype(Exact) + old
    unit = np.finfo(residual.dtype).eps / 2
    roundings = unit * (np.abs(v) + np.abs(residual)) + np.finfo(residual.dtype).smallest_subnormal
    error = np.abs(out.astype(Exact) + residual - v)
    assert np.isfinite(residual).all() and (error <= roundings * (1 + 4 * unit)).all()


def check_error_bound(codec, x):
    out = decoded(codec, encoded(codec, x), x.size, np.float64)
    assert (np.abs(out.astype(Exact) - x.astype(Exact)) <= codec.error_bound(x)).all()


@every_codec
@every_dtype
class TestOfEveryType:
    @pytest.mark.parametrize("n", SIZES)
    def test_value_plus_residual_is_the_input(self, codec, dtype, n):
        acc = accumulator(dtype)
        check_conservation(codec, numbers(n, dtype), numbers(n, acc, seed=1) / acc.type(10))

    @pytest.mark.parametrize("n", SIZES)
    def test_errors_are_within_the_bound(self, codec, dtype, n):
        check_error_bound(codec, numbers(n, dtype))

    @pytest.mark.parametrize("n", range(1, 41))
    def test_odd_counts_leave_nothing_beyond_the_end(self, codec, dtype, n):
        x = numbers(n, dtype)
        wires = [np.full(codec.wire_nbytes(n) + 9, poison, np.uint8) for poison in (0x55, 0xAA)]
        for wire in wires:
            codec.encode(x, None, wire[1:-8])  # at an odd address
        np.testing.assert_array_equal(wires[0][1:-8], wires[1][1:-8])
        assert all((w[-8:] == w[0]).all() for w in wires)

    def test_zeros_are_exact(self, codec, dtype):
        x = np.zeros(1000, dtype)
        residual = np.zeros(1000, accumulator(dtype))
        out = decoded(codec, encoded(codec, x, residual), 1000, dtype)
        assert not out.any() and not residual.any()

    @pytest.mark.parametrize("value", [5.0, -3.0, 1e-3])
    @pytest.mark.parametrize("n", [1, 300])
    def test_a_constant_is_recovered(self, codec, dtype, value, n):
        x = np.full(n, value, dtype)
        check_error_bound(codec, x)
        out = decoded(codec, encoded(codec, x), n, np.float64)
        assert (out[:1] != 0).all() and not np.isnan(out).any()

    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_is_seen_and_not_kept(self, codec, dtype, odd):
        x, residual = numbers(300, dtype), np.full(300, 0.5, accumulator(dtype))
        x[5] = odd
        out = decoded(codec, encoded(codec, x, residual), 300, dtype)
        assert not np.isfinite(out[5]) and residual[5] == 0.5 and np.isfinite(residual).all()
        check_conservation(codec, numbers(300, dtype), residual)

    def test_large_and_tiny_numbers_are_conserved(self, codec, dtype):
        info = ml_dtypes.finfo(dtype)
        x = np.tile(np.array([float(info.max), -float(info.max), float(info.smallest_subnormal), 1,
                              -float(info.tiny), 0, -0.0], dtype), 40)
        check_conservation(codec, x, np.zeros(x.size, accumulator(dtype)))
        check_error_bound(codec, x)
        assert np.isfinite(decoded(codec, encoded(codec, x), x.size, dtype)).all()

    def test_denormals_are_conserved(self, codec, dtype):
        tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        x = (np.arange(-50, 50) * tiny).astype(dtype)
        check_conservation(codec, x, np.zeros(100, accumulator(dtype)))
        check_error_bound(codec, x)

    def test_decode_add_is_decode_then_add(self, codec, dtype):
        x, acc = numbers(1000, dtype), numbers(1000, accumulator(dtype), seed=1)
        wire = encoded(codec, x)
        want = acc + decoded(codec, wire, 1000, acc.dtype)
        codec.decode_add(wire, acc)
        np.testing.assert_array_equal(acc, want)

    def test_the_fused_verb_is_decode_add_then_encode(self, codec, dtype):
        x, acc = numbers(1000, dtype), accumulator(dtype)
        incoming = encoded(codec, numbers(1000, dtype, seed=1))
        for old in (None, numbers(1000, acc, seed=2)):
            total, fused, separate = x.astype(acc), old, None if old is None else old.copy()
            codec.decode_add(incoming, total)
            want, wire = encoded(codec, total, separate), np.full_like(encoded(codec, x), 0xAA)
            wire = np.full(codec.wire_nbytes(1000), 0xAA, np.uint8)
            codec.decode_add_encode(incoming, x, fused, wire)
            np.testing.assert_array_equal(decoded(codec, wire, 1000, acc),
                                          decoded(codec, want, 1000, acc))
            if old is not None:
                np.testing.assert_array_equal(fused, separate)


@every_codec
def test_repr_evaluates_to_the_codec(codec):
    names = {type(c).__name__: type(c) for c in CODECS}
    assert eval(repr(codec), names) == codec and codec.layout.layout == codec.layout


@every_codec
def test_wires_of_aligned_parts_follow_one_another(codec):
    if not codec.concatenates or codec.stochastic:  # the block's number decides chances
        pytest.skip("each chunk has a wire of its own")
    x = numbers(2 * codec.align + 3, np.float32)
    cut = codec.align
    parts = [encoded(codec, x[:cut]), encoded(codec, x[cut:])]
    np.testing.assert_array_equal(np.concatenate(parts), encoded(codec, x))


@every_codec
def test_the_wire_is_smaller_than_the_numbers(codec):
    assert codec.wire_nbytes(0) == 0
    sizes = [codec.wire_nbytes(n) for n in range(1, 3000)]
    assert sizes == sorted(sizes) and sizes[-1] < 4 * 2999 + 9


@every_codec
def test_a_clean_call_repeats_its_bytes(codec):
    x = numbers(1000, np.float32)
    np.testing.assert_array_equal(encoded(codec, x), encoded(codec, x))


@every_codec
class TestWrongArrays:
    wire = staticmethod(lambda codec, n: np.zeros(codec.wire_nbytes(n), np.uint8))

    def test_of_integers(self, codec):
        with pytest.raises(TypeError, match="int32"):
            codec.encode(np.zeros(8, np.int32), None, self.wire(codec, 8))
        with pytest.raises(TypeError, match="float16"):
            codec.decode_add(self.wire(codec, 8), np.zeros(8, np.float16))
        with pytest.raises(TypeError, match="residual: dtype float64"):
            codec.encode(np.zeros(8, np.float32), np.zeros(8), self.wire(codec, 8))

    def test_of_a_wire_that_is_too_short(self, codec):
        for call in (lambda wire: codec.encode(np.zeros(8, np.float32), None, wire),
                     lambda wire: codec.decode(wire, np.zeros(8, np.float32))):
            with pytest.raises((TypeError, ValueError), match="wire"):
                call(self.wire(codec, 8)[:-1])
            with pytest.raises(TypeError, match="wire"):
                call(self.wire(codec, 8).view(np.int8))

    def test_of_other_shapes(self, codec):
        with pytest.raises(ValueError, match="residual: 7 elements"):
            codec.encode(np.zeros(8, np.float32), np.zeros(7, np.float32), self.wire(codec, 8))
        for x in (np.zeros((2, 4), np.float32), np.zeros(16, np.float32)[::2]):
            with pytest.raises(ValueError, match="contiguous"):
                codec.encode(x, None, self.wire(codec, 8))

    def test_that_may_not_be_written(self, codec):
        x = numbers(8, np.float32)
        x.flags.writeable = False
        wire = encoded(codec, x)
        with pytest.raises(ValueError, match="read-only"):
            codec.decode(wire, x)
        with pytest.raises(ValueError, match="overlap"):
            codec.decode_add_encode(wire, x, None, wire)
