"""Lists, tuples and dicts of tensors: same structure out, one message per dtype between."""

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

from collectives.arrays import as_leaf
from collectives.containers import as_leaves, flatten, names_of
from collectives.messages import exchanged, read_only, results, write_only

Layer = namedtuple("Layer", "weight bias")


def in_place(leaves):
    return exchanged(leaves, leaves)


def doubled(tree):
    leaves, rebuild = flatten(tree)
    return rebuild([2 * leaf for leaf in leaves])


@pytest.mark.parametrize("tree, leaves", [
    (5, [5]),
    ([1, 2, 3], [1, 2, 3]),
    ((1, (2, [3])), [1, 2, 3]),
    ({"b": 2, "a": 1}, [1, 2]),
    ({2: {"y": 4, "x": 3}, 1: [1, 2]}, [1, 2, 3, 4]),
    ({"b": 1, 0: 2}, [1, 2]),
    (Layer(bias=2, weight=1), [1, 2]),
    ([], []), ({}, []), ([[], {"a": ()}], []),
    (OrderedDict(b=2, a=1), [1, 2]),
], ids=repr)
def test_leaves_come_in_an_order_on_which_ranks_agree(tree, leaves):
    assert flatten(tree)[0] == leaves


@pytest.mark.parametrize("tree, want", [
    (5, 10),
    ([1, (2, [3])], [2, (4, [6])]),
    ({"b": 2, "a": [1]}, {"b": 4, "a": [2]}),
    (Layer(1, [2]), Layer(2, [4])),
    (OrderedDict(b=2, a=1), OrderedDict(b=4, a=2)),
    (defaultdict(list, b=2, a=1), defaultdict(list, b=4, a=2)),
    (type("Stack", (list,), {})([1, 2]), [2, 4]),
    (type("Table", (dict,), {})(a=1), {"a": 2}),
    ([], []), ({"a": ()}, {"a": ()}),
], ids=repr)
def test_a_rebuilt_container_keeps_types_and_order(tree, want):
    got = doubled(tree)
    assert got == want and type(got) is type(tree)
    if isinstance(tree, dict):
        assert list(got) == list(tree)


def test_a_rebuilt_defaultdict_keeps_its_factory():
    assert doubled(defaultdict(list, a=1))["new"] == []


def test_a_rebuilt_container_does_not_change_the_old_one():
    tree = {"a": [1, 2], "b": 3}
    assert doubled(tree) == {"a": [2, 4], "b": 6}
    assert tree == {"a": [1, 2], "b": 3}


def test_containers_whose_values_are_unchanged_are_returned_themselves():
    x, inner = np.ones(2), [np.ones(3)]
    tree = {"array": x, "number": 1.0, "inner": inner}
    leaves, rebuild = flatten(tree)
    assert rebuild(leaves) is tree
    changed = rebuild([leaves[0], leaves[1], 5.0])
    assert changed is not tree and changed["inner"] is inner and changed["array"] is x


def test_what_happens_to_the_container_meanwhile_does_not_confuse_rebuild():
    tree = [1, 2]
    leaves, rebuild = flatten(tree)
    tree.append(3)
    assert rebuild([10 * leaf for leaf in leaves]) == [10, 20]


@pytest.mark.parametrize("tree, where", [
    ({"w": [np.ones(2), None]}, r"at \['w'\]\[1\]: .*NoneType"),
    (["text"], r"at \[0\]: .*str"),
    ({"b": np.ones(1), "a": np.array(["x"])}, r"at \['a'\]: unsupported dtype <U1"),
    ((None,), r"at \[0\]"),
])
def test_an_error_says_where_the_tensor_is(tree, where):
    with pytest.raises(TypeError, match=where):
        as_leaves(tree)


def tensors():
    """Two dtypes, in layouts that must be gathered."""
    return [np.arange(1.0, 4.0), np.arange(10, 14), np.arange(20.0, 26.0).reshape(2, 3).T,
            np.array(7.0), np.arange(30.0, 38.0)[::-2], np.empty(0, np.int64)]


FLOATS = [1, 2, 3, 20, 23, 21, 24, 22, 25, 7, 37, 35, 33, 31]
INTS = [10, 11, 12, 13]


def test_one_message_per_dtype_in_order_of_appearance():
    messages = in_place([as_leaf(x) for x in tensors()])
    assert [m.dtype for m in messages] == ["float64", "int64"]
    assert messages[0].source.tolist() == FLOATS and messages[1].source.tolist() == INTS
    for m in messages:
        assert m.source is m.target and m.target.flags.carray and m.target.ndim == 1


def test_commit_scatters_a_message_to_its_arrays():
    given = tensors()
    for message in in_place([as_leaf(x) for x in given]):
        message.target *= 2
        message.commit()
    for x, before in zip(given, tensors(), strict=True):
        np.testing.assert_array_equal(x, 2 * before)


def test_an_array_alone_in_its_dtype_is_not_copied():
    x, y = np.arange(3.0), np.arange(3)
    for message, array in zip(in_place([as_leaf(x), as_leaf(y)]), (x, y), strict=True):
        assert message.source.ctypes.data == message.target.ctypes.data == array.ctypes.data


def test_out_of_place_leaves_the_inputs_alone():
    given, outs = tensors(), [np.full_like(x, 99) for x in tensors()]
    for x in given:
        x.flags.writeable = False
    for m in exchanged([as_leaf(x) for x in given], [as_leaf(y) for y in outs]):
        m.target[:] = 3 * m.source
        m.commit()
    for x, y, before in zip(given, outs, tensors(), strict=True):
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(y, 3 * before)


def test_out_that_is_the_input_is_in_place():
    x = np.arange(6.0)
    for out in (x, x.view()):
        (message,) = exchanged([as_leaf(x)], [as_leaf(out)])
        assert message.source is message.target


def test_out_may_be_larger_than_a_single_input():
    x, y = np.arange(3.0), np.zeros((2, 3))
    (message,) = exchanged([as_leaf(x)], [as_leaf(y)])
    assert message.source.size == 3 and message.target.size == 6


@pytest.mark.parametrize("count", [1, 3])
def test_messages_to_contribute_only_read(count):
    given = tensors()[:count]
    for x in given:
        x.flags.writeable = False
    message = read_only([as_leaf(x) for x in given])[0]
    assert message.source.tolist() == FLOATS[:3 if count == 1 else 9] and message.target.size == 0
    message.commit()


@pytest.mark.parametrize("count", [1, 6])
def test_messages_to_receive_only_write(count):
    outs = tensors()[:count]
    for message, values in zip(write_only([as_leaf(y) for y in outs]),
                               ([-x for x in FLOATS], [-x for x in INTS]), strict=False):
        message.target[:] = values[:message.target.size]
        message.commit()
    for y, before in zip(outs, tensors(), strict=False):
        np.testing.assert_array_equal(y, -before)


def test_numbers_among_arrays_get_new_values():
    x = np.arange(3.0)
    tree = {"loss": 0.5, "grad": x, "step": 3}
    leaves, rebuild = as_leaves(tree)
    outs = results(leaves)
    for message in exchanged(leaves, outs):
        message.target[:] = 2 * message.source
        message.commit()
    got = rebuild([out.value() for out in outs])
    assert got == {"loss": 1.0, "grad": x, "step": 6} and got["grad"] is x
    assert x.tolist() == [0, 2, 4] and type(got["step"]) is int and tree["loss"] == 0.5


MEMORY = np.arange(12.0)


@pytest.mark.parametrize("pair", [
    (MEMORY, MEMORY), (MEMORY[:7], MEMORY[5:]), (MEMORY.reshape(3, 4)[:, :2], MEMORY[5:6]),
    (MEMORY, MEMORY.view(np.int64)), (MEMORY[::-1], MEMORY[3:4]),
])
@pytest.mark.parametrize("verb", [in_place, write_only])
def test_results_that_share_memory_are_refused(pair, verb):
    with pytest.raises(ValueError, match=r"tensors 0 and 2 .* share memory"):
        verb([as_leaf(x) for x in (pair[0], np.ones(3), pair[1])])


def test_results_that_interleave_are_not_refused():
    grid = np.arange(12.0).reshape(3, 4)
    for message in in_place([as_leaf(grid[:, column]) for column in range(4)]):
        message.target += 1
        message.commit()
    assert grid.ravel().tolist() == list(range(1, 13))


def test_a_read_only_array_among_others_is_refused_before_anything_is_written():
    good, bad = np.arange(3.0), np.arange(3.0)
    bad.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        in_place([as_leaf(good), as_leaf(bad)])


def test_torch_and_numpy_travel_together():
    torch = pytest.importorskip("torch")
    given = [np.arange(3.0), torch.arange(4.0, dtype=torch.float64).requires_grad_()]
    (message,) = in_place([as_leaf(x) for x in given])
    message.target += 1
    message.commit()
    assert given[0].tolist() == [1, 2, 3] and given[1].tolist() == [1, 2, 3, 4]
    assert given[1]._version == 1 and given[1].requires_grad


@pytest.mark.parametrize("tree, names", [
    (1.0, [None]), ([1, 2], ["0", "1"]), ({"w": 1, "layers": [{"b": 2}]}, ["layers.0.b", "w"]),
    (Layer(1, (2, 3)), ["0", "1.0", "1.1"]), ({2: 1, 10: 2}, ["2", "10"]),
])
def test_tensors_are_named_by_their_place_in_the_container(tree, names):
    assert names_of(tree) == names
