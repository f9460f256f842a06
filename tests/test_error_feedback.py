"""Error feedback against the algorithm of the paper, written out; what each call leaves; errors."""

import numpy as np
import pytest

from collectives.error_feedback import ErrorFeedback
from collectives.kernels.codec import FLOATS
from tests.feedback_call import DENSE, SPARSE, Largest, call, normal


def exchange(feedbacks, gradients, codec):
    return sum(call(f, "w", g, codec) for f, g in zip(feedbacks, gradients, strict=True))


def paper(gradients, momentum, keep, warmup):
    """Each rank's u and v and the sums sent, as the paper has it: [(sum, us, vs), ...]."""
    ranks, size = gradients.shape[1:]
    us = np.zeros((ranks, size), np.float32)
    vs = np.zeros((ranks, size), np.float32)
    steps = []
    for t, gs in enumerate(gradients):
        us = np.float32(momentum) * us + gs
        if t < warmup:
            total = sum(us)
        else:
            vs = vs + us
            masks = np.zeros(vs.shape, bool)
            for mask, v in zip(masks, vs, strict=True):
                mask[np.argsort(-np.abs(v), kind="stable")[:keep]] = True
            total = sum(vs * masks)
            vs, us = vs * ~masks, us * ~masks
        steps.append((total, us, vs))
    return steps


@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_momentum_correction_masking_and_warm_up_are_those_of_the_paper(momentum, warmup):
    gradients = normal(40, 3, 17)
    feedbacks = [ErrorFeedback(momentum, warmup) for _ in range(3)]
    wanted = paper(gradients, momentum, SPARSE.keep, warmup)
    for t, (total, us, vs) in enumerate(wanted):
        got = exchange(feedbacks, gradients[t], SPARSE)
        np.testing.assert_array_equal(got, total)
        for rank, feedback in enumerate(feedbacks):
            np.testing.assert_array_equal(feedback["w"].velocity, us[rank])
            if t < warmup:
                assert feedback["w"].residual is None
            else:
                np.testing.assert_array_equal(feedback["w"].residual, vs[rank])
    assert (us == 0).any() and (us != 0).any()


def least_squares(ranks, codec, momentum, in_the_optimizer=0.0, steps=300):
    """Squared error of a linear model that `ranks` ranks trained; the data has no noise."""
    inputs = normal(ranks, 40, 10)
    truth = np.arange(1, 11, dtype=np.float32)
    weights, velocity = np.zeros(10, np.float32), np.zeros(10, np.float32)
    feedbacks = [ErrorFeedback(momentum) for _ in range(ranks)]
    path = []
    for _ in range(steps):
        gradients = [x.T @ (x @ (weights - truth)) / 40 for x in inputs]
        velocity = in_the_optimizer * velocity + exchange(feedbacks, gradients, codec) / ranks
        weights = weights - np.float32(0.05) * velocity
        path.append(np.square(weights - truth).sum())
    return np.array(path)


def test_when_all_is_sent_momentum_before_the_exchange_is_momentum_after_it():
    """To rounding: both are the same sum in another order."""
    before, after = least_squares(3, None, 0.9), least_squares(3, None, 0.0, 0.9)
    np.testing.assert_allclose(before[:50], after[:50], rtol=1e-3)


@pytest.mark.parametrize("codec", [Largest(1), DENSE])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_training_with_what_was_dropped_added_later_converges(codec, momentum):
    path = least_squares(3, codec, momentum, steps=600)
    assert path[-1] < 1e-3 * path[0]


@pytest.mark.parametrize("codec", [SPARSE, DENSE])
def test_without_momentum_nothing_is_lost(codec):
    gradients = normal(20, 2, 5, 4, dtype=np.float64)
    feedbacks = [ErrorFeedback(), ErrorFeedback()]
    sent = np.zeros((5, 4))
    for step in gradients:
        sent += sum(call(f, "w", g, codec, "float64") for f, g in zip(feedbacks, step, strict=True))
    left = sum(f["w"].residual for f in feedbacks)
    # 20 steps of additions of at most sum |g|, each rounded once or twice, on 2 ranks
    bound = 4 * 20 * 2**-53 * np.abs(gradients).sum((0, 1))
    assert (np.abs(sent + left - gradients.sum((0, 1))) <= bound).all()


def test_dense_codecs_are_not_masked():
    feedback = ErrorFeedback(momentum=0.5)
    call(feedback, "w", np.array([1, 2, 0.1], np.float32), DENSE)
    np.testing.assert_array_equal(feedback["w"].residual[:2], 0)
    np.testing.assert_array_equal(feedback["w"].velocity, np.float32([1, 2, 0.1]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_was_sent_is_masked_although_its_rounding_stays(dtype):
    """The residual of a sent value is up to half a unit in its last place."""
    accumulator = np.float64 if dtype == "float64" else np.float32
    roundoff = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 2**-24)
    feedback = ErrorFeedback(momentum=0.5)
    gradient = np.array([1, -1, 3, 4, 2**-40, 0], accumulator)
    entry = feedback.begin("w", dtype, (6,), SPARSE)
    entry.source(gradient)
    entry.residual[...] = gradient * [roundoff, -roundoff, 1, 0, roundoff, 0.5]
    entry.end()
    np.testing.assert_array_equal(feedback["w"].velocity, [0, 0, 3, 0, 0, 0])


def test_a_kept_value_that_nearly_cancelled_is_masked_and_other_kept_ones_are_not():
    """The documented price of the test above: |r| <= |u| / 4096 for float32."""
    feedback = ErrorFeedback(momentum=0.5)
    entry = feedback.begin("w", "float32", (4,), SPARSE)
    entry.source(np.full(4, 4096, np.float32))
    entry.residual[...] = [1, -1, 1.001, 4096]
    entry.end()
    np.testing.assert_array_equal(feedback["w"].velocity, [0, 0, 4096, 4096])


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_003])
def test_long_tensors_are_computed_piece_by_piece_to_the_end(size):
    gradients = normal(3, size, seed=size)
    feedback = ErrorFeedback(momentum=0.5)
    u, v = np.zeros(size, np.float32), np.zeros(size, np.float32)
    codec = Largest(size // 2)
    for g in gradients:
        call(feedback, "w", g, codec)
        u = np.float32(0.5) * u + g
        v += u
        v -= codec.sent(v)
        u[np.abs(v) <= np.abs(u) / 4096] = 0  # as the module documents it for float32
        np.testing.assert_array_equal(feedback["w"].residual, v)
        np.testing.assert_array_equal(feedback["w"].velocity, u)
    assert feedback.residual_norm("w") == pytest.approx(np.linalg.norm(v.astype(np.float64)))


def test_the_gradient_is_not_written_and_without_momentum_it_is_sent_itself():
    gradient = normal(4, 3)
    before = gradient.copy()
    gradient.flags.writeable = False
    plain = ErrorFeedback().begin("w", "float32", (4, 3), SPARSE)
    assert plain.source(gradient.reshape(-1)) is None
    source = ErrorFeedback(0.5).begin("w", "float32", (4, 3), SPARSE).source(gradient.reshape(-1))
    assert not source.flags.writeable and source.shape == (12,)
    np.testing.assert_array_equal(gradient, before)


def test_the_residual_has_the_tensors_shape_and_the_accumulators_type():
    for dtype in FLOATS:
        for shape in [(), (0,), (3,), (2, 3, 4)]:
            entry = ErrorFeedback().begin("w", dtype, shape, DENSE)
            assert entry.active and entry.residual.shape == shape
            assert entry.residual.dtype == (np.float64 if dtype == "float64" else np.float32)
            assert entry.residual.flags.c_contiguous and not entry.residual.any()


def test_warm_up_is_counted_per_name():
    feedback, gradient = ErrorFeedback(warmup_steps=2), np.ones(3, np.float32)
    active = []
    for name in ("a", "b", "a", "a", "b", "b"):
        entry = feedback.begin(name, "float32", (3,), DENSE)
        active.append(entry.active)
        assert (entry.residual is not None) == entry.active and entry.source(gradient) is None
        entry.end()
    assert active == [False, False, False, True, False, True]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_tensor_that_is_not_compressed_any_more_sends_what_was_kept(momentum):
    feedback, other = ErrorFeedback(momentum), ErrorFeedback(momentum)
    gradients = normal(3, 8)
    compressed = call(feedback, "w", gradients[0], SPARSE)
    kept, u = feedback["w"].residual.copy(), feedback["w"].velocity
    u = 0 if u is None else u.copy()
    assert kept.any() and compressed.any()
    np.testing.assert_array_equal(
        call(feedback, "w", gradients[1], None),
        kept + (np.float32(momentum) * u + gradients[1]))
    assert feedback["w"].residual is None and feedback.residual_norm("w") == 0
    call(other, "w", gradients[0], None)
    assert other["w"].residual is None
    call(feedback, "w", gradients[2], SPARSE)
    assert feedback["w"].residual.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [None, SPARSE, DENSE], ids=["none", "sparse", "dense"])
def test_a_gradient_that_is_not_finite_is_seen_once_and_does_not_stay(bad, codec):
    feedback = ErrorFeedback(momentum=0.5)
    gradient = np.array([1, bad, 3, 4], np.float32)
    entry = feedback.begin("w", "float32", (4,), codec)
    source = entry.source(gradient)
    np.testing.assert_array_equal(source, gradient)
    if entry.residual is not None:
        entry.residual[...] = [1, 0, 3, 4]  # nothing sent but what is not finite
    entry.end()
    np.testing.assert_array_equal(feedback["w"].velocity, [1, 0, 3, 4])


def test_a_velocity_that_overflows_restarts_without_a_warning():
    feedback = ErrorFeedback(momentum=0.9)
    big = np.full(2, 3e38, np.float32)
    with np.errstate(all="raise"):
        call(feedback, "w", big, None)
        entry = feedback.begin("w", "float32", (2,), None)
        assert np.isinf(entry.source(big)).all()
        entry.end()
    assert not feedback["w"].velocity.any()


def test_which_tensors_travel_together_changes_nothing():
    """Buckets [a b] [c], then [a] [b c], then all in one: as three tensors on their own."""
    gradients = {name: normal(5, 6, seed=n) for n, name in enumerate("abc")}
    together, alone = ErrorFeedback(0.5), ErrorFeedback(0.5)
    for step, buckets in enumerate(["ab c", "a bc", "abc", "c b a", "cab"]):
        for bucket in buckets.split():
            entries = {n: together.begin(n, "float32", (6,), SPARSE) for n in bucket}
            for n, entry in entries.items():
                v = entry.source(gradients[n][step]) + entry.residual
                entry.residual[...] = v - SPARSE.sent(v)
            for entry in entries.values():
                entry.end()
        for n in "abc":
            call(alone, n, gradients[n][step], SPARSE)
    for n in "abc":
        np.testing.assert_array_equal(together[n].residual, alone[n].residual)
        np.testing.assert_array_equal(together[n].velocity, alone[n].velocity)


def test_a_view_is_one_name_and_in_a_container_a_prefix():
    feedback = ErrorFeedback()
    feedback["layer"].begin(None, "float32", (2,), DENSE).end()
    feedback["layer"].begin("0.bias", "float32", (3,), DENSE).end()
    assert feedback.names == ("layer", "layer.0.bias") == tuple(feedback)
    assert feedback["layer"].residual.shape == (2,) and feedback["other"].residual is None
    assert "layer" in feedback and "other" not in feedback


def test_integers_beside_gradients_are_let_through():
    feedback = ErrorFeedback(momentum=0.5)
    entry = feedback.begin("n", "int64", (), None)
    assert not entry.active and entry.residual is None and entry.source(np.arange(3)) is None
    entry.end()
    assert len(feedback) == 0
    with pytest.raises(TypeError, match="cannot compress int64: expected one of float16"):
        feedback.begin("n", "int64", (), DENSE)


def test_sizes_and_repr():
    feedback = ErrorFeedback(momentum=0.5, warmup_steps=0)
    call(feedback, "w", normal(10), DENSE)
    call(feedback, "x", normal(5, dtype=np.float64), DENSE, "float64")
    assert len(feedback) == 2 and feedback.nbytes == 2 * (40 + 40)
    assert repr(feedback) == ("<ErrorFeedback(momentum=0.5, warmup_steps=0): 2 tensors, "
                              "160 bytes>")
    feedback["w"].residual[...] = 2e30  # whose square float32 does not hold
    assert feedback.residual_norm("w") == pytest.approx(2e30 * 10**0.5, rel=1e-6)


def test_reset_forgets_one_name_or_all():
    feedback = ErrorFeedback()
    for name in "ab":
        call(feedback, name, normal(3), DENSE)
    feedback.reset("a")
    assert feedback.names == ("b",)
    call(feedback, "a", normal(4), DENSE)  # any shape again
    feedback.reset()
    assert len(feedback) == 0 and feedback.nbytes == 0
    with pytest.raises(KeyError, match="no residual of 'a'"):
        feedback.reset("a")


@pytest.mark.parametrize("dtype, shape, words", [
    ("float32", (3, 4), r"'w' is float32\[4, 3\]: got a tensor that needs float32\[3, 4\]"),
    ("float32", (12,), r"float32\[12\]"),
    ("float64", (4, 3), r"float64\[4, 3\]")])
def test_another_shape_or_accumulator_is_an_error_that_changes_nothing(dtype, shape, words):
    for codec, warmup in ((DENSE, 0), (DENSE, 9), (None, 0)):
        feedback = ErrorFeedback(warmup_steps=warmup)
        call(feedback, "w", normal(4, 3), codec)
        before = feedback.state_dict()
        with pytest.raises(ValueError, match=words):
            feedback.begin("w", dtype, shape, codec)
        np.testing.assert_equal(feedback.state_dict(), before)
        call(feedback, "w", normal(4, 3), codec, "bfloat16")  # whose accumulator is float32 too


def test_a_name_is_in_one_call_at_a_time():
    feedback = ErrorFeedback()
    entry = feedback.begin("w", "float32", (3,), DENSE)
    empty = ErrorFeedback().state_dict()
    for use in (lambda: feedback.begin("w", "float32", (3,), DENSE), feedback.reset,
                feedback.state_dict, lambda: feedback.load_state_dict(empty)):
        with pytest.raises(ValueError, match=r"'w'.*not yet waited for"):
            use()
    entry.cancel()
    assert feedback.state_dict()["steps"] == {}
    feedback.begin("w", "float32", (7,), DENSE)  # no call was completed, so any shape; dropped
    feedback.begin("w", "float32", (3,), DENSE).end()
    assert feedback.state_dict()["steps"] == {"w": 1}


@pytest.mark.parametrize("use, error, words", [
    (lambda: ErrorFeedback(momentum=1.0), ValueError, "momentum=1.0: expected a number from 0"),
    (lambda: ErrorFeedback(momentum=-0.1), ValueError, "momentum=-0.1"),
    (lambda: ErrorFeedback(momentum=float("nan")), ValueError, "momentum=nan"),
    (lambda: ErrorFeedback(momentum="0.9"), ValueError, "momentum='0.9'"),
    (lambda: ErrorFeedback(warmup_steps=-1), ValueError, "warmup_steps=-1"),
    (lambda: ErrorFeedback(warmup_steps=1.5), ValueError, "warmup_steps=1.5"),
    (lambda: ErrorFeedback().begin(None, "float32", (3,), DENSE), ValueError, r'feedback\["w"\]'),
    (lambda: ErrorFeedback()[0], TypeError, "name 0: expected a string"),
    (lambda: ErrorFeedback().residual_norm("w"), KeyError, "no residual of 'w'"),
    (lambda: ErrorFeedback(0.5).begin("w", "float32", (3,), DENSE).source(np.zeros(3)), ValueError,
     r"float64\[3\]: expected float32\[3\]")], ids=range(10))
def test_malformed_arguments_are_named(use, error, words):
    with pytest.raises(error, match=words):
        use()
