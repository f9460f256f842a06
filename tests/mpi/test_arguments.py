"""What the verbs accept and refuse: the same on every rank, before any message."""

import numpy as np
import pytest

import collectives as coll
from collectives import dtypes, schedules
from tests.layouts import numpy_dtype
from tests.mpi.reference import RANK, SIZE, assert_same, ops_of

TOTAL = SIZE * (SIZE + 1) // 2
VERBS = [*schedules.VERBS, "iallreduce"]
REDUCING = ["allreduce", "iallreduce", "reduce_scatter", "reduce"]


@pytest.fixture(autouse=True)
def everything_still_works():
    """Whatever was refused, the next call works."""
    yield
    assert coll.allreduce(np.float32(RANK + 1)) == TOTAL


def refused(error, words, verb, *args, **kwargs):
    with pytest.raises(error) as caught:
        getattr(coll, verb)(*args, **kwargs)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("dtype", [[("a", "u8"), ("b", "u8")], object, "U3", "S2", "M8[s]",
                                   np.longdouble, "V4"])
def test_elements_that_are_no_numbers_of_ours(verb, dtype):
    x = np.zeros(4, dtype)
    refused(TypeError, [str(x.dtype), "float32", "bfloat16"], verb, x)


@pytest.mark.parametrize("verb", REDUCING)
@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_pairs_of_dtype_and_op_that_mean_nothing(verb, dtype):
    for op in set(dtypes.OPS) - set(ops_of(dtype)):
        refused(TypeError, [op, dtype], verb, np.zeros(4, numpy_dtype(dtype)), op)


@pytest.mark.parametrize("verb", REDUCING)
def test_an_unknown_op_lists_those_there_are(verb):
    refused(ValueError, ["'average'", *dtypes.OPS], verb, np.zeros(3), "average")


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_algorithm_lists_those_of_the_verb(verb):
    known = schedules.algorithms(verb.removeprefix("i"))
    refused(ValueError, ["'rings'", "auto", "native", *known], verb, np.zeros(3),
            algorithm="rings")


@pytest.mark.parametrize("verb", schedules.VERBS)
def test_an_algorithm_of_another_verb_is_no_algorithm_of_this_one(verb):
    others = set(schedules.algorithms("allreduce")) - set(schedules.algorithms(verb))
    for name in others:
        refused(ValueError, [name, "ring"], verb, np.zeros(3), algorithm=name)


@pytest.mark.parametrize("verb", schedules.ROOTED)
@pytest.mark.parametrize("root", [-1, SIZE, 0.0, "0", None])
def test_a_root_is_a_rank(verb, root):
    refused(ValueError, [f"root={root!r}", f"0 to {SIZE - 1}"], verb, np.zeros(3), root=root)


@pytest.mark.parametrize("verb", VERBS)
def test_what_compresses_nothing_is_refused_by_every_verb(verb):
    refused(ValueError, ["int7", "topk"], verb, np.zeros(3), compression="int7")
    refused(TypeError, ["3", "policy"], verb, np.zeros(3), compression=3)
    refused(TypeError, ["Int8", "int32"], verb, np.zeros(3, np.int32), compression="int8")
    refused(ValueError, ["native", "ring"], verb, np.zeros(3), compression="int8",
            algorithm="native")


@pytest.mark.parametrize("verb", ["allreduce", "iallreduce", "broadcast"])
def test_a_read_only_array_is_refused_and_not_changed(verb):
    x = np.arange(3.0)
    x.flags.writeable = False
    refused(ValueError, ["read-only"], verb, x)
    assert_same(x, np.arange(3.0))


@pytest.mark.parametrize("make, words", [
    (lambda x: x[1:], ["overlaps"]),
    (lambda x: x[:-1][::-1], ["overlaps"]),
    (lambda x: np.empty(7), ["(7,)", "(8,)"]),
    (lambda x: np.broadcast_to(0.0, 8), ["read-only"]),
])
def test_an_out_that_cannot_take_the_result(make, words):
    memory = np.arange(9.0)
    for verb in ("allreduce", "iallreduce"):
        refused(ValueError, words, verb, memory[:-1], out=make(memory))
    refused(TypeError, ["float32", "float64"], "allreduce", memory, out=np.empty(9, np.float32))
    assert_same(memory, np.arange(9.0))


def test_things_that_are_no_tensors():
    for thing in (None, "abc", b"abc", {1, 2}, [1, None], object(), np.ma.masked_array([1.0])):
        refused(TypeError, ["expected"], "allreduce", thing)


def test_the_default_is_a_sum_in_place():
    x = np.full(4, RANK + 1.0)
    assert coll.allreduce(x) is x and (x == TOTAL).all()
    y = np.full(4, RANK + 1.0)
    z = coll.allreduce(y, out=np.empty(4))
    assert (y == RANK + 1).all() and (z == TOTAL).all()
    assert coll.allreduce(y, out=y) is y and (y == TOTAL).all()


def test_numbers_are_returned_with_their_type():
    assert coll.allreduce(RANK + 1) == TOTAL and type(coll.allreduce(RANK + 1)) is int
    mean = coll.allreduce(RANK + 1.0, "mean")
    assert type(mean) is float and mean == TOTAL / SIZE
    assert coll.allreduce(1j * (RANK + 1)) == 1j * TOTAL
    assert coll.allreduce(RANK == 0) is True and coll.allreduce(RANK == 0, "and") is (SIZE == 1)
    low = coll.allreduce(np.float16(RANK + 1), "max")
    assert type(low) is np.float16 and low == SIZE
    assert coll.broadcast(RANK + 5, SIZE - 1) == SIZE + 4
    assert coll.reduce(RANK + 1, root=SIZE - 1) == (TOTAL if RANK == SIZE - 1 else RANK + 1)
    assert_same(coll.allgather(RANK), np.arange(SIZE))


def test_a_container_of_every_dtype_is_reduced_and_keeps_its_form():
    tree = {name: [np.full((2, 3), RANK % 2, numpy_dtype(name)), np.ones((), numpy_dtype(name))]
            for name in dtypes.NAMES}
    tree["number"], tree["pair"] = RANK, (np.full(5, RANK, np.float32), np.zeros(0))
    got = coll.allreduce(tree)
    assert list(got) == [*dtypes.NAMES, "number", "pair"] and got["number"] == TOTAL - SIZE
    for name in dtypes.NAMES:
        odd, every = (bool(SIZE // 2), True) if name == "bool" else (SIZE // 2, SIZE)
        assert got[name][0] is tree[name][0]
        assert (got[name][0] == odd).all() and got[name][1] == every
    assert (got["pair"][0] == TOTAL - SIZE).all() and got["pair"][1].shape == (0,)


def test_containers_in_the_other_verbs():
    x = {"b": np.full(3, RANK, np.int32), "a": [np.full((SIZE, 2), RANK + 1.0), 2 * RANK]}
    gathered = coll.allgather(x)
    assert gathered["b"].shape == (SIZE, 3) and (gathered["a"][1] == 2 * np.arange(SIZE)).all()
    scattered = coll.reduce_scatter({"b": x["a"][0], "a": np.ones((SIZE, 1), np.int8)})
    assert_same(scattered["b"], np.full((1, 2), float(TOTAL)))
    assert_same(scattered["a"], np.full((1, 1), SIZE, np.int8))
    moved = coll.broadcast(x, SIZE - 1)
    assert (moved["b"] == SIZE - 1).all() and moved["a"][1] == 2 * (SIZE - 1)
    assert coll.allreduce([]) == [] and coll.allreduce({}) == {}


def test_small_integers_wrap_as_numpys_do():
    x = np.array([120 if RANK == 0 else 100, -128, 3], np.int8)
    want = np.array([120 + 100 * (SIZE - 1), -128 * SIZE, 3 * SIZE]).astype(np.int8)
    assert_same(coll.allreduce(x), want)
    assert_same(coll.allreduce(np.array([200], np.uint8)), np.array([200 * SIZE]).astype(np.uint8))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_a_mean_of_integers_truncates_toward_zero(dtype):
    x = np.array([2 * RANK + 1, -2 * RANK - 1, 100, -(RANK == 0), RANK == 0, 5, 6], dtype)
    total = np.array([SIZE**2, -SIZE**2, 100 * SIZE, -1, 1, 5 * SIZE, 6 * SIZE])
    assert_same(coll.allreduce(x, "mean"), np.trunc(total / SIZE).astype(dtype))


@pytest.mark.parametrize("algorithm", [*schedules.algorithms("allreduce"), "native"])
def test_a_mean_of_float16_neither_overflows_nor_vanishes(algorithm):
    x = np.array([30000, 65504, 1e-7, 6e-8], np.float16)
    assert_same(coll.allreduce(x.copy(), "mean", algorithm=algorithm), x)


@pytest.mark.parametrize("op", ["sum", "max", "or", "prod", "min", "and"])
def test_bools_stay_zero_or_one(op):
    x = np.array([True, RANK == 0, RANK != 0, False])
    want = [True, True, SIZE > 1, False] if op in ("sum", "max", "or") \
        else [True, SIZE == 1, False, False]
    got = coll.allreduce(x, op)
    assert_same(got, np.array(want))
    assert got.view(np.uint8).max() <= 1


@pytest.mark.parametrize("verb", ["allreduce", "reduce", "broadcast"])
def test_a_read_only_array_is_refused_on_every_rank_and_the_next_call_is_right(verb):
    locked = np.full(4, 7.0)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        getattr(coll, verb)(locked)
    np.testing.assert_array_equal(coll.allreduce(np.ones(4)), np.full(4, coll.size()))


@pytest.mark.parametrize("algorithm", ["auto", "binomial_tree", "ring"])
def test_a_root_may_be_a_numpy_integer(algorithm):
    root = np.int64(coll.size() - 1)
    got = coll.broadcast(np.full(3, coll.rank()), root=root, algorithm=algorithm)
    np.testing.assert_array_equal(got, np.full(3, root))


def test_the_short_way_checks_what_may_change_between_calls():
    x = np.arange(6.0)
    for out in (np.empty(6), np.empty((6, 2))[:, 0], np.empty(6)[::-1], np.empty(6), None):
        want = np.arange(6.0) * coll.size()
        mine = x.copy()
        got = coll.allreduce(mine, out=out)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(mine, x if out is not None else want)
    with pytest.raises(ValueError, match="shape"):
        coll.allreduce(x, out=np.empty((2, 3)))
    with pytest.raises(TypeError, match="dtype"):
        coll.allreduce(x, out=np.empty(6, np.float32))
    with pytest.raises(ValueError, match="overlap"):
        coll.allreduce(x[:-1], out=x[1:])
