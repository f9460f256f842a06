"""What the codecs with one code per element promise beside `test_codecs`."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from collectives.kernels.codecs import BFloat16, Float16, Int4, Int8, Sign, Ternary, as_codec
from tests.test_codecs import decoded, encoded, numbers

HALVES = [Float16(), BFloat16()]
LEVELS = [Int8, Int4, Ternary]
BLOCKS = [*LEVELS, Sign]
HALF_TYPE = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("block", [0, 4, 12, 65544, -8, 8.0, "8", True])
def test_other_blocks_are_refused(kind, block):
    with pytest.raises(ValueError, match=rf"block={block!r}: expected a multiple of 8"):
        kind(block=block)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": 2**64}, {"seed": 1.0}, {"stochastic": 1}])
def test_other_seeds_are_refused(kind, wrong):
    (name, value), = wrong.items()
    with pytest.raises(ValueError, match=rf"{name}={value!r}: expected"):
        kind(**wrong)


@pytest.mark.parametrize("codec, ratio", [
    (Float16(), 2), (BFloat16(), 2), (Int8(), 3.9), (Int4(), 7.7), (Ternary(), 15), (Sign(), 29)],
    ids=repr)
def test_the_wire_is_as_small_as_stated(codec, ratio):
    for n in (100_000, 100_003, 1_000_000):
        assert codec.wire_nbytes(n) * ratio <= 4 * n
        assert encoded(codec, np.ones(n, np.float32)).size == codec.wire_nbytes(n)


def test_a_bad_number_spoils_its_block_alone():
    x = numbers(64, np.float32)
    x[20] = np.inf
    out = decoded(Int8(block=16), encoded(Int8(block=16), x), 64, np.float32)
    np.testing.assert_array_equal(np.isnan(out), (np.arange(64) // 16) == 1)


# 16-bit formats

def every_float():
    """float32 around every half: itself, what rounds to it, ties, and neighbours of those."""
    halves = [np.arange(2**16, dtype=np.uint16).view(kind).astype(np.float32)
              for kind in HALF_TYPE.values()]
    bits = np.concatenate(halves).view(np.uint32)
    bits = np.unique(bits[:, None] + np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001,
                                               0xFFFF], np.uint32))
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    return np.concatenate([bits, random]).view(np.float32)


@pytest.mark.parametrize("codec", HALVES, ids=repr)
class TestHalves:
    def test_every_code_is_a_number_that_is_sent_exactly(self, codec):
        codes = np.arange(2**16, dtype=np.uint16)
        values = codes.view(HALF_TYPE[codec.name]).astype(np.float32)
        np.testing.assert_array_equal(decoded(codec, codes.view(np.uint8), 2**16, np.float32),
                                      values)
        sent = encoded(codec, values).view(np.uint16)
        np.testing.assert_array_equal(sent[~np.isnan(values)], codes[~np.isnan(values)])

    def test_rounding_is_that_of_the_type_but_saturates(self, codec):
        x = every_float()
        sent = encoded(codec, x).view(HALF_TYPE[codec.name]).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            want = x.astype(HALF_TYPE[codec.name]).astype(np.float32)
        beyond = np.isinf(want) & np.isfinite(x)
        want[beyond] = np.copysign(np.float32(codec.largest), x[beyond])
        np.testing.assert_array_equal(sent, want)
        assert beyond.any() and np.isinf(want).any() and np.isnan(want).any()

    def test_the_integer_cores_do_the_same(self, codec):
        from numba import vectorize
        encode, decode = codec.cores(lambda f: vectorize(["uint32(uint32)"])(f))
        x = every_float()
        codes = encode(x.view(np.uint32))
        np.testing.assert_array_equal(codes, encoded(codec, x).view(np.uint16))
        np.testing.assert_array_equal(
            decode(codes).astype(np.uint32),
            decoded(codec, encoded(codec, x), x.size, np.float32).view(np.uint32))

    def test_the_integer_cores_run_as_python(self, codec):
        encode, decode = codec.cores(lambda f: f)
        for value in (0.0, -0.0, 1.5, 65504.0, 65520.0, -1e30, 1e-7, 6e-8, 3e-8, 1e-40, np.inf):
            x = np.array([value], np.float32)
            code = encode(x.view(np.uint32)[0])
            assert code == encoded(codec, x).view(np.uint16)[0]
            assert np.uint32(decode(code)) == decoded(
                codec, encoded(codec, x), 1, np.float32).view(np.uint32)[0]


@pytest.mark.parametrize("value", [65504, 65505, 65519.996, 65520, 65536, 7e4, 1e30])
@pytest.mark.parametrize("sign", [1, -1])
def test_float16_saturates_and_the_rest_stays(value, sign):
    x = np.array([sign * value, 1], np.float32)
    residual = np.zeros(2, np.float32)
    out = decoded(Float16(), encoded(Float16(), x, residual), 2, np.float32)
    np.testing.assert_array_equal(out, [sign * 65504, 1])
    np.testing.assert_array_equal(residual, [x[0] - np.float32(sign * 65504), 0])


# Stochastic rounding

@pytest.mark.parametrize("kind", LEVELS)
class TestStochasticRounding:
    def test_repeats_for_a_seed_and_differs_for_others(self, kind):
        x = numbers(3000, np.float32)
        sent = [encoded(kind(stochastic=True, seed=seed), x) for seed in (1, 1, 2, 2**63, 2**33)]
        assert (sent[0] == sent[1]).all()
        assert all((a != b).any() for i, a in enumerate(sent[1:]) for b in sent[i + 2:])

    def test_seed_of_the_call_is_added(self, kind):
        x = numbers(3000, np.float32)
        wire = np.empty(kind().wire_nbytes(3000), np.uint8)
        kind(stochastic=True, seed=2**64 - 1).encode(x, None, wire, seed=6)
        np.testing.assert_array_equal(wire, encoded(kind(stochastic=True, seed=5), x))

    def test_expected_value_is_the_input(self, kind):
        # The mean of N draws of a number between two levels has a standard deviation of at most
        # scale / (2 sqrt(N)); 6 of them are exceeded once in 5e8 elements.
        draws, levels = 4000, kind().levels
        codec, x = kind(block=64, stochastic=True), np.linspace(-1, 1, 64, dtype=np.float32)
        wire, out, total = np.empty(codec.wire_nbytes(64), np.uint8), np.empty(64), np.zeros(64)
        for seed in range(draws):
            codec.encode(x, None, wire, seed=seed)
            codec.decode(wire, out)
            total += out
        assert np.abs(total / draws - x).max() <= 6 / levels / (2 * draws**0.5)

    def test_choices_within_and_between_blocks_are_independent(self, kind):
        # Half-way numbers are coin flips: the correlation of N of them is within 6 / sqrt(N).
        n, levels = 256 * 256, kind().levels
        x = np.full(n, 0.5 / levels, np.float32)
        x[::256] = 1  # sets the scale of each block
        out = decoded(kind(stochastic=True), encoded(kind(stochastic=True), x), n, np.float64)
        flips = np.where(out.reshape(256, 256)[:, 1:] > 0, 1.0, -1.0)
        for pairs in (flips[:, 1:] * flips[:, :-1], flips[1:] * flips[:-1]):
            assert abs(pairs.mean()) <= 6 / pairs.size**0.5
        assert abs(flips.mean()) <= 6 / flips.size**0.5

    def test_levels_themselves_are_sent_exactly(self, kind):
        levels = kind().levels
        x = np.tile(np.arange(-levels, levels + 1, dtype=np.float32), 9)
        codec = kind(block=8 * ((x.size + 7) // 8), stochastic=True)
        np.testing.assert_array_equal(decoded(codec, encoded(codec, x), x.size, np.float32), x)


# Blocks

@pytest.mark.parametrize("kind", LEVELS)
def test_the_largest_scale_is_the_largest_that_decodes_to_a_number(kind):
    codec = kind()
    top = Fraction(2**128 - 2**103)  # rounds to infinity
    scale = float(codec.largest_scale)
    assert Fraction(scale) * codec.levels < top
    with np.errstate(over="ignore"):
        above = float(np.nextafter(codec.largest_scale, np.float32(np.inf)))
    assert not np.isfinite(above) or above * codec.levels >= float(np.finfo(np.float32).max)


def test_sign_sends_the_mean_magnitude():
    x = np.array([1, -2, 3, -0.0, 0, -6], np.float32)
    out = decoded(Sign(), encoded(Sign(), x), 6, np.float32)
    np.testing.assert_array_equal(out, [2, -2, 2, 2, 2, -2])


def test_a_value_without_a_name_is_the_first_parameter():
    assert as_codec("int8:64") == Int8(64) == Int8(block=64)
    assert as_codec("int4:64,seed=3,stochastic=True") == Int4(64, stochastic=True, seed=3)
