"""How two arrays meet in memory, and what may be passed as `out`."""

import numpy as np
import pytest

from collectives.arrays import as_leaf, check_out, overlap

MEMORY = np.arange(24.0)
GRID = MEMORY.reshape(4, 6)


@pytest.mark.parametrize("a, b, how", [
    (MEMORY, MEMORY, "same"),
    (MEMORY, MEMORY.view(), "same"),
    (GRID[:, 2:3], GRID[:, 2:3], "same"),
    (GRID[1:2, 2], MEMORY[8:9], "same"),
    (MEMORY, np.arange(24.0), "none"),
    (MEMORY[:12], MEMORY[12:], "none"),
    (MEMORY[::2], MEMORY[1::2], "none"),
    (GRID[:, :3], GRID[:, 3:], "none"),
    (MEMORY[:0], MEMORY, "none"),
    (MEMORY[:-1], MEMORY[1:], "partial"),
    (MEMORY, MEMORY[::-1], "partial"),
    (MEMORY, GRID, "partial"),
    (GRID[:4, :4], GRID[:4, :4].T, "partial"),
    (MEMORY, MEMORY.view(np.int64), "partial"),
    (MEMORY, MEMORY.view(">f8"), "partial"),
])
def test_how_memory_meets(a, b, how):
    assert overlap(as_leaf(a), as_leaf(b)) == overlap(as_leaf(b), as_leaf(a)) == how


def test_out_may_be_the_input_or_apart_from_it():
    x = np.arange(6.0)
    for out in (x, x.view(), np.empty(6), np.empty(12)[::2], np.empty(6, ">f8")):
        check_out(as_leaf(x), as_leaf(out), x.shape)


@pytest.mark.parametrize("x, out, error, words", [
    (np.ones(3), np.ones(3, "f4"), TypeError, "out has dtype float32: expected float64"),
    (np.ones(3), np.ones((1, 3)), ValueError, r"out has shape \(1, 3\): expected \(3,\)"),
    (np.ones(()), 1.0, ValueError, "out: .*immutable"),
    (np.ones(3), np.broadcast_to(1.0, 3), ValueError, "out: .*read-only"),
    (MEMORY[:-1], MEMORY[1:], ValueError, "out overlaps the input"),
])
def test_out_that_cannot_take_the_result_is_refused(x, out, error, words):
    with pytest.raises(error, match=words):
        check_out(as_leaf(x), as_leaf(out), x.shape)


def test_out_of_an_allgather_has_the_shape_it_must_have():
    x = np.ones((2, 3))
    check_out(as_leaf(x), as_leaf(np.empty((4, 2, 3))), (4, 2, 3))
    with pytest.raises(ValueError, match=r"expected \(4, 2, 3\)"):
        check_out(as_leaf(x), as_leaf(np.empty((2, 3))), (4, 2, 3))
