"""Which elements TopK and Threshold send.  From 32,768 on top-k takes a sample to begin with."""

import numpy as np
import pytest

from collectives.kernels.codecs import Threshold, TopK
from tests.sparse_reference import chosen, pack, sent
from tests.test_codecs_sparse import decoded, encoded


def normal(rng, n):
    return rng.standard_normal(n)


def cauchy(rng, n):
    return rng.standard_cauchy(n)


def few_values(rng, n):
    return rng.integers(-3, 4, n)


def equal(rng, n):
    return np.full(n, -7.0)


def zeros(rng, n):
    return np.where(rng.random(n) < 0.5, 0.0, -0.0)


def rising(rng, n):
    return np.arange(n) - n / 3


def large_ones_apart(rng, n):
    return rng.standard_normal(n) * np.where(np.arange(n) % 1024 < 8, 1e6, 1)


def large_ones_last(rng, n):
    return rng.standard_normal(n) * np.where(np.arange(n) > n - n // 50, 1e6, 1)


def denormal(rng, n):
    return rng.integers(-1000, 1000, n) * 2.0**-149


def many_nans(rng, n):
    return np.where(rng.random(n) < 0.2, np.nan, np.where(rng.random(n) < 0.3, np.inf, 1))


def few_nans(rng, n):
    return np.where(rng.random(n) < 0.003, np.nan, rng.standard_normal(n))


KINDS = [normal, cauchy, few_values, equal, zeros, rising, large_ones_apart, large_ones_last,
         denormal, many_nans, few_nans]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("n", [1, 100, 32_767, 100_003])
def test_exactly_the_largest_are_sent(kind, n):
    rng = np.random.default_rng(n)
    x = kind(rng, n).astype(np.float32)
    values = sent(x)
    for density in (1e-9, 0.0005, 0.003, 0.01, 0.05, 0.3, 0.9, 1.0):
        codec = TopK(density)
        want = pack(codec, values, chosen(codec, values))
        assert encoded(codec, x).tobytes() == want.tobytes(), density


def test_no_element_is_sent_twice_or_lost_in_a_long_tensor():
    x = np.random.default_rng(0).permutation(3_000_000).astype(np.float32)
    wire = encoded(TopK(0.01), x)
    values, indices = wire[:120_000].view(np.float32), wire[120_000:].view(np.uint32)
    np.testing.assert_array_equal(np.sort(values), np.arange(2_970_000, 3_000_000))
    np.testing.assert_array_equal(values, x[indices])
    assert (np.diff(indices.astype(np.int64)) > 0).all()


def test_elements_of_float16_are_found_beyond_65535():
    for n in (70_000, 2**16, 2**16 + 1):
        x = np.zeros(n, np.float16)
        x[n - 1], x[40_000] = 5, -3
        for codec in (TopK(2 / n), Threshold(1.0)):
            np.testing.assert_array_equal(decoded(codec, encoded(codec, x), n, np.float16), x)


@pytest.mark.parametrize("kept", ["nothing", "everything", "some"])
def test_a_threshold_keeps_what_reaches_it(kept):
    x = {"nothing": np.full(999, 0.4), "everything": np.full(999, -2.0),
         "some": np.linspace(-1, 1, 999)}[kept].astype(np.float32)
    residual = np.zeros(999, np.float32)
    out = decoded(Threshold(0.5), encoded(Threshold(0.5), x, residual), 999)
    np.testing.assert_array_equal(out, np.where(np.abs(x) >= 0.5, x, 0))
    np.testing.assert_array_equal(residual, x - out)


def test_a_threshold_means_the_float32_next_to_it():
    for dtype in (np.float32, np.float64):
        x = np.array([0.1, np.nextafter(np.float32(0.1), np.float32(0)), 0, 0, 0, 0], dtype)
        out = decoded(Threshold(0.1), encoded(Threshold(0.1), x), 6)
        assert np.flatnonzero(out).tolist() == [0]


def test_a_relative_threshold_does_not_see_what_is_not_finite():
    x = np.array([3, 4, np.inf, np.nan, 0, 0, 0, 0], np.float32)  # root mean square 25/8 = 1.77
    for relative, kept in ((1.69, [0, 1, 2, 3]), (1.7, [1, 2, 3]), (2.3, [2, 3])):
        wire = encoded(Threshold(relative=relative), x)
        assert np.flatnonzero(decoded(Threshold(relative=relative), wire, 8)).tolist() == kept


def test_nothing_of_zeros_is_kept_by_a_relative_threshold():
    assert encoded(Threshold(relative=0.1), np.zeros(1000, np.float32)).size == 8
