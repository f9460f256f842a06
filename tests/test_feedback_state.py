"""Error feedback, saved and loaded: exact restarts, other numbers of ranks, malformed states."""

import pickle

import numpy as np
import pytest

from collectives.error_feedback import ErrorFeedback
from tests.feedback_call import DENSE, SPARSE, Largest, call, normal


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("warmup", [0, 3, 5])
def test_a_restart_goes_on_bit_for_bit(momentum, warmup):
    gradients = normal(8, 3, 3)
    one, two = ErrorFeedback(momentum, warmup), ErrorFeedback()
    for g in gradients[:4]:
        call(one, "w", g, SPARSE)
    state = pickle.loads(pickle.dumps(one.state_dict()))
    two.load_state_dict(state)
    for g in gradients[4:]:
        np.testing.assert_array_equal(call(one, "w", g, SPARSE), call(two, "w", g, SPARSE))
    assert (two.momentum, two.warmup_steps) == (momentum, warmup)
    np.testing.assert_equal(one.state_dict(), two.state_dict())


def test_a_state_is_a_copy_both_ways(tmp_path):
    feedback, other = ErrorFeedback(0.5), ErrorFeedback()
    call(feedback, "w", normal(3), SPARSE)
    state = feedback.state_dict()
    np.savez(tmp_path / "state.npz", state=state)
    call(feedback, "w", normal(3, seed=1), SPARSE)
    saved = np.load(tmp_path / "state.npz", allow_pickle=True)["state"].item()
    np.testing.assert_equal(saved, state)
    other.load_state_dict(saved)
    call(other, "w", normal(3, seed=2), SPARSE)
    np.testing.assert_equal(saved, state)


@pytest.mark.parametrize("old, new", [(4, 2), (2, 3), (3, 1), (1, 4), (5, 3), (3, 3)])
@pytest.mark.parametrize("keep", ["sum", "mean"])
def test_another_number_of_ranks_keeps_the_sum_or_the_mean(old, new, keep):
    """Small integers, so that the sums are exact."""
    states = []
    for rank in range(old):
        feedback = ErrorFeedback(momentum=0.5)
        call(feedback, "w", np.arange(24, dtype=np.float32).reshape(4, 6) + 2 * rank, SPARSE)
        states.append(feedback.state_dict())
    loaded = [ErrorFeedback() for _ in range(new)]
    for rank, feedback in enumerate(loaded):
        feedback.load_state_dict(states, rank=rank, size=new, keep=keep)
        assert feedback.state_dict()["steps"] == {"w": 1} and feedback.momentum == 0.5
        assert feedback["w"].residual.shape == (4, 6)
    for what in ("residuals", "velocities"):
        before = sum(state[what]["w"] for state in states)
        after = sum(feedback.state_dict()[what]["w"] for feedback in loaded)
        assert before.any()
        if keep == "sum":
            np.testing.assert_array_equal(after, before)
        else:  # a factor new/old, a product and a sum, each rounded
            np.testing.assert_allclose(after / new, before / old, rtol=4 * 2**-24 * new)


def test_rank_r_takes_old_ranks_r_and_every_size_th_after_it():
    states = []
    for rank in range(5):
        feedback = ErrorFeedback()
        call(feedback, "w", np.full(4, 10.0**rank, np.float32), Largest(0))
        states.append(feedback.state_dict())
    feedback = ErrorFeedback()
    for rank, size, want in [(0, 3, 1001), (1, 3, 10010), (2, 3, 100), (0, 1, 11111), (7, 8, 0)]:
        feedback.load_state_dict(states, rank=rank, size=size)
        np.testing.assert_array_equal(feedback["w"].residual, np.full(4, want, np.float32))


def test_the_same_number_of_ranks_is_an_exact_restart():
    states = []
    for rank in range(2):
        feedback = ErrorFeedback(0.9)
        call(feedback, "w", normal(9, seed=rank), SPARSE)
        states.append(feedback.state_dict())
    feedback.load_state_dict(states, rank=1, size=2)
    np.testing.assert_equal(feedback.state_dict(), states[1])


def test_a_name_that_some_old_ranks_do_not_have_is_zero_there():
    one, two, new = ErrorFeedback(), ErrorFeedback(), ErrorFeedback()
    call(one, "a", np.ones(5, np.float32), Largest(0))
    call(two, "b", np.ones(5, np.float64), Largest(0), "float64")
    new.load_state_dict([one.state_dict(), two.state_dict()], rank=1, size=2)
    np.testing.assert_array_equal(new["a"].residual, np.zeros(5))
    np.testing.assert_array_equal(new["b"].residual, np.ones(5))


def test_byte_order_of_a_saved_array_does_not_matter():
    feedback, state = ErrorFeedback(), ErrorFeedback().state_dict()
    state["steps"]["w"], state["residuals"]["w"] = 1, np.arange(3, dtype=">f4")
    feedback.load_state_dict(state)
    assert feedback["w"].residual.dtype.isnative
    call(feedback, "w", np.zeros(3, np.float32), DENSE)


def broken(**changes):
    """A state with one tensor, with these entries in place of its own."""
    feedback = ErrorFeedback(0.5)
    call(feedback, "w", np.ones(3, np.float32), Largest(0))
    return {**feedback.state_dict(), **changes}


@pytest.mark.parametrize("state, error, words", [
    (None, TypeError, "state is a NoneType"),
    ([], ValueError, "one old rank or more"),
    ({}, ValueError, r"has \[\]: expected \['momentum'"),
    ([broken(), 3], TypeError, "state 1: int"),
    (broken(extra=1), ValueError, "'extra'"),
    (broken(residuals=[1]), TypeError, "residuals is a list: expected a dict"),
    (broken(residuals={"w": [1.0]}), TypeError, "residuals of 'w' is a list"),
    (broken(residuals={"w": np.arange(3)}), ValueError, "'w' has dtype int64"),
    (broken(residuals={"w": np.ones(3, np.float16)}), ValueError, "'w' has dtype float16"),
    (broken(residuals={"w": np.ones(4, np.float32)}), ValueError, "shape and dtype of 'w'"),
    (broken(velocities={"v": np.ones(3, np.float32)}), ValueError, "'v': expected it among steps"),
    (broken(steps={"w": -1}), ValueError, "steps of 'w' is -1"),
    (broken(steps={"w": 1.5}), ValueError, "steps of 'w' is 1.5"),
    (broken(momentum="big"), TypeError, "momentum is 'big'"),
    (broken(momentum=2.0), ValueError, "momentum=2.0"),
    (broken(warmup_steps=-1), ValueError, "warmup_steps=-1"),
    ([broken(), broken(steps={"w": 2})], ValueError, "steps of 'w': 1 and 2"),
    ([broken(), broken(momentum=0.25)], ValueError, "momentum: 0.5 and 0.25"),
    ([broken(), broken(residuals={"w": np.ones((3, 1), np.float32)})], ValueError, "of 'w'"),
    ], ids=range(19))
def test_a_malformed_state_is_an_error_and_changes_nothing(state, error, words):
    feedback = ErrorFeedback(0.75, warmup_steps=1)
    call(feedback, "x", np.ones(2, np.float32), DENSE)
    before = feedback.state_dict()
    ranks = {} if isinstance(state, dict) else {"rank": 0, "size": 2}
    with pytest.raises(error, match=words):
        feedback.load_state_dict(state, **ranks)
    np.testing.assert_equal(feedback.state_dict(), before)


@pytest.mark.parametrize("arguments, error", [
    ({}, ValueError), ({"rank": 0}, ValueError), ({"rank": 2, "size": 2}, ValueError),
    ({"rank": -1, "size": 2}, ValueError), ({"rank": 0, "size": 2, "keep": "max"}, ValueError)],
    ids=repr)
def test_a_list_of_states_needs_the_rank_and_size_of_the_new_run(arguments, error):
    with pytest.raises(error, match=r"rank|keep"):
        ErrorFeedback().load_state_dict([broken(), broken()], **arguments)


def test_one_state_takes_no_rank():
    with pytest.raises(TypeError, match="a list of states"):
        ErrorFeedback().load_state_dict(broken(), rank=0, size=1)
