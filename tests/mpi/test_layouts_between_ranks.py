"""Layouts differ between ranks; elements meet by logical index and each result keeps its layout."""

import numpy as np
import pytest

import collectives as coll
from tests.layouts import BASE, LAYOUTS, REVERSED, distinct, numpy_dtype
from tests.mpi.reference import RANK, SIZE, assert_same

EVERY = {**LAYOUTS, **REVERSED}
NAMES = list(EVERY)
TOTAL_RANKS = SIZE * (SIZE + 1) // 2


def mine(layout, dtype="float64", factor=RANK + 1):
    """A view of this layout that holds `factor` * distinct values, and the memory around it."""
    base = np.full(BASE, 77, numpy_dtype(dtype))
    view = EVERY[layout](base)
    view[...] = distinct(dtype) * factor
    return base, view


def around(base, layout):
    """The elements of the memory that are not in the view."""
    inside = np.zeros(BASE, bool)
    EVERY[layout](inside)[...] = True
    return base[~inside]


def layouts_of_ranks(shift):
    return NAMES[(RANK + shift) % len(NAMES)]


@pytest.mark.parametrize("shift", range(len(EVERY)))
def test_allreduce(shift):
    layout = layouts_of_ranks(shift)
    base, x = mine(layout)
    assert coll.allreduce(x) is x
    assert_same(x, distinct("float64") * TOTAL_RANKS, layout)
    assert (around(base, layout) == 77).all()


@pytest.mark.parametrize("shift", range(len(EVERY)))
def test_allreduce_into_out(shift):
    _, x = mine(layouts_of_ranks(shift), "int32")
    base, out = mine(layouts_of_ranks(shift + 3), "int32", 0)
    x.flags.writeable = False
    assert coll.allreduce(x, out=out) is out
    assert_same(out, distinct("int32") * TOTAL_RANKS)
    assert_same(x, distinct("int32") * (RANK + 1))
    assert (around(base, layouts_of_ranks(shift + 3)) == 77).all()


@pytest.mark.parametrize("shift", range(len(EVERY)))
def test_the_other_verbs(shift):
    layout, want = layouts_of_ranks(shift), distinct("float32")
    root = shift % SIZE
    base, x = mine(layout, "float32")
    coll.broadcast(x, root)
    assert_same(x, want * np.float32(root + 1))
    assert (around(base, layout) == 77).all()

    base, x = mine(layout, "float32")
    coll.reduce(x, root=root)
    assert_same(x, want * np.float32(TOTAL_RANKS if root == RANK else RANK + 1))
    assert (around(base, layout) == 77).all()

    _, x = mine(layout, "float32")
    rows = np.array_split(want * np.float32(TOTAL_RANKS), SIZE)[RANK]
    assert_same(coll.reduce_scatter(x), rows)
    assert_same(coll.allgather(x), np.stack([want * np.float32(r + 1) for r in range(SIZE)]))
    out = np.empty((4, SIZE, 3), np.float32).transpose(1, 2, 0)
    coll.allgather(x, out=out)
    assert_same(out, np.stack([want * np.float32(r + 1) for r in range(SIZE)]))


def test_a_fortran_array_meets_a_c_array_and_stays_one():
    x = distinct("int64", shape=(4, 3)) * (RANK + 1)
    x = np.asfortranarray(x) if RANK == 0 else x
    coll.allreduce(x)
    assert_same(x, distinct("int64", shape=(4, 3)) * TOTAL_RANKS)
    assert x.flags.f_contiguous == (RANK == 0)


@pytest.mark.parametrize("shape", [(8,), (4, 6)])
def test_a_reversed_view_leaves_its_base_reversed(shape):
    base = distinct("float64", shape=shape) * (RANK + 1)
    view = base[::-1] if len(shape) == 1 else base[::-1, ::-1]
    coll.allreduce(view)
    assert_same(base, distinct("float64", shape=shape) * TOTAL_RANKS)


@pytest.mark.parametrize("orders", ["<<", ">>", "><", "=>"])
def test_byte_orders_may_differ(orders):
    dtype = np.dtype("f4").newbyteorder(orders[RANK % 2])
    x = np.arange(1, 6).astype(dtype) * dtype.type(RANK + 1)
    x = x.astype(dtype)
    coll.allreduce(x)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, np.arange(1, 6) * TOTAL_RANKS)
    got = coll.allgather(np.array([RANK, 7], dtype.str.replace("f4", "i8")))
    np.testing.assert_array_equal(got, [[r, 7] for r in range(SIZE)])


@pytest.mark.parametrize("verb", ["allreduce", "reduce", "broadcast"])
def test_a_column_is_reduced_and_the_other_is_left(verb):
    pairs = np.array([[1.0, 5.0], [2.0, 6.0]]) * (RANK + 1)
    other = pairs[:, 1].copy()
    getattr(coll, verb)(pairs[:, 0])
    factor = {"allreduce": TOTAL_RANKS, "broadcast": 1,
              "reduce": TOTAL_RANKS if RANK == 0 else RANK + 1}[verb]
    assert_same(pairs[:, 0], np.array([1.0, 2.0]) * factor)
    assert_same(pairs[:, 1], other)


