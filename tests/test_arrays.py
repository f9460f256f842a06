"""NumPy arrays and numbers as flat buffers: logical order in, the user's own layout out."""

import subprocess
import sys

import numpy as np
import pytest

from collectives.arrays import as_leaf, overlap
from collectives.dtypes import NAMES, carried, carrier
from tests.layouts import BASE, LAYOUTS, REVERSED, SHAPE, distinct, numpy_dtype, poisoned

ALL_LAYOUTS = {**LAYOUTS, **REVERSED}
pytest.importorskip("ml_dtypes")


def bits(array: np.ndarray, name: str) -> np.ndarray:
    """What a buffer of `array` must hold."""
    return carried(np.ascontiguousarray(array, numpy_dtype(name)), name).reshape(-1)


def placed(name, layout, order="="):
    """A poisoned base, the view of it that `layout` cuts, and the values in that view."""
    base = poisoned(BASE, numpy_dtype(name).newbyteorder(order))
    view = ALL_LAYOUTS[layout](base)
    view[...] = distinct(name)
    return base, view, distinct(name)


@pytest.mark.parametrize("order", ["=", ">"])
@pytest.mark.parametrize("layout", ALL_LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
class TestEveryLayout:
    def test_a_buffer_is_flat_native_and_in_logical_order(self, name, layout, order):
        _, view, values = placed(name, layout, order)
        for buffer in (as_leaf(view).read(), as_leaf(view).inout()[0]):
            assert buffer.dtype == carrier(name) and buffer.dtype.isnative
            assert buffer.flags.carray and buffer.shape == (12,)
            np.testing.assert_array_equal(buffer, bits(values, name))

    @pytest.mark.parametrize("how", ["inout", "target"])
    def test_commit_writes_the_view_and_nothing_around_it(self, name, layout, order, how):
        base, view, _ = placed(name, layout, order)
        want, expected_view, _ = placed(name, layout, order)
        expected_view[...] = distinct(name, 40)
        leaf = as_leaf(view)
        buffer, commit = getattr(leaf, how)()
        buffer[:] = bits(distinct(name, 40), name)
        commit()
        assert base.tobytes() == want.tobytes()
        assert leaf.value() is view and view.strides == expected_view.strides

    def test_reading_changes_nothing(self, name, layout, order):
        base, view, _ = placed(name, layout, order)
        view.flags.writeable = False
        before = base.tobytes()
        as_leaf(view).read()
        assert base.tobytes() == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["inout", "target"])
def test_a_contiguous_array_is_its_own_buffer(name, how):
    x = distinct(name)
    assert as_leaf(x).read().ctypes.data == x.ctypes.data
    assert getattr(as_leaf(x), how)()[0].ctypes.data == x.ctypes.data


@pytest.mark.parametrize("dtype", ["<f8", "=f8", "float", "double", np.longlong, np.intc])
def test_another_spelling_of_a_native_dtype_costs_no_copy(dtype):
    x = np.arange(5).astype(dtype)
    assert np.shares_memory(as_leaf(x).read(), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
@pytest.mark.parametrize("order", ["=", ">"])
def test_zero_dimensions_and_zero_elements(shape, order):
    x = np.full(shape, 3.0, np.dtype("f4").newbyteorder(order))
    leaf = as_leaf(x)
    buffer, commit = leaf.inout()
    assert leaf.shape == shape and buffer.shape == (leaf.size,) == (x.size,)
    buffer += 4
    commit()
    assert x.shape == shape and np.all(x == 7)


def test_an_unaligned_array_is_staged():
    memory = np.full(4 * 5 + 1, 0xAA, np.uint8)
    x = memory[1:].view(np.float32)
    x[:] = distinct("float32", 1, (5,))
    buffer, commit = as_leaf(x).inout()
    assert as_leaf(x).read().flags.aligned
    assert buffer.flags.aligned and not np.shares_memory(buffer, x)
    buffer *= 2
    commit()
    assert x.tolist() == [2, 4, 6, 8, 10] and memory[0] == 0xAA


def test_a_reversed_array_leaves_its_base_reversed():
    base = np.arange(8)
    buffer, commit = as_leaf(base[::-1]).inout()
    assert buffer.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    buffer += 10 * np.arange(8)
    commit()
    assert base.tolist() == [70, 61, 52, 43, 34, 25, 16, 7]


def test_the_field_of_a_structured_array_is_a_strided_array():
    table = np.zeros(3, [("a", "u1"), ("b", "f4")])
    buffer, commit = as_leaf(table["b"]).inout()
    buffer[:] = [1, 2, 3]
    commit()
    assert table.tolist() == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("view", [
    np.arange(6.0).view(type("Mine", (np.ndarray,), {})), np.rec.array(np.arange(6.0)),
])
def test_a_subclass_is_reduced_in_place_and_returned_itself(view):
    leaf = as_leaf(view)
    buffer, commit = leaf.inout()
    buffer += 1
    commit()
    assert leaf.value() is view and np.asarray(view).ravel().tolist() == [1, 2, 3, 4, 5, 6]


def read_only():
    x = np.arange(3.0)
    x.flags.writeable = False
    return x


def broadcast():
    x = np.broadcast_to(np.float32(1), (3,)).view()
    return np.lib.stride_tricks.as_strided(np.ones(1), x.shape, (0,))


def windows():
    return np.lib.stride_tricks.as_strided(np.arange(5.0), (3, 3), (8, 8))


@pytest.mark.parametrize("make, reason", [
    (read_only, "read-only"), (broadcast, "share memory"), (windows, "share memory"),
])
def test_memory_that_cannot_hold_a_result_can_only_be_read(make, reason):
    leaf = as_leaf(make())
    assert not leaf.writable and leaf.read().tolist() == make().ravel().tolist()
    for how in (leaf.inout, leaf.target, leaf.check_writable):
        with pytest.raises(ValueError, match=reason):
            how()


@pytest.mark.parametrize("shape", [None, (), (2, 3, 4), (0,)])
@pytest.mark.parametrize("name", NAMES)
def test_an_empty_leaf_has_the_type_of_the_first(name, shape):
    x = distinct(name).astype(numpy_dtype(name).newbyteorder(">"))
    fresh = as_leaf(x).empty(shape)
    y = fresh.value()
    assert type(y) is np.ndarray and y.dtype == numpy_dtype(name)
    assert y.shape == fresh.shape == (SHAPE if shape is None else shape)
    assert fresh.writable and y.flags.c_contiguous and overlap(as_leaf(x), fresh) == "none"


@pytest.mark.parametrize("number, name", [
    (True, "bool"), (-7, "int64"), (2**63 - 1, "int64"), (0.5, "float64"), (1 + 2j, "complex128"),
    *((distinct(name)[0, 0], name) for name in NAMES),
], ids=repr)
def test_a_number_gives_a_new_number_of_its_type(number, name):
    leaf = as_leaf(number)
    assert (leaf.framework, leaf.dtype, leaf.shape) == ("scalar", name, ())
    assert leaf.immutable and not leaf.writable and leaf.value() is number
    fresh = leaf.empty()
    fresh.target()[0][:] = leaf.read()
    assert type(fresh.value()) is type(number) and fresh.value() == number
    with pytest.raises(ValueError, match="immutable"):
        leaf.inout()


def test_numbers_of_all_ranks_are_an_array():
    fresh = as_leaf(True).empty((3,))
    fresh.target()[0][:] = [1, 0, 1]
    assert isinstance(fresh.value(), np.ndarray) and fresh.value().tolist() == [True, False, True]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_an_int_beyond_64_bits_is_refused(number):
    with pytest.raises(OverflowError, match=f"{number} does not fit int64"):
        as_leaf(number)


@pytest.mark.parametrize("x, named", [
    (None, "NoneType"), ("text", "str"), ([1.0], "list"), ({1, 2}, "set"), (b"a", "bytes"),
    (memoryview(b"a"), "memoryview"), (np.float32, "type"), (np.dtype("f4"), "DType"),
    (np.array(["a"]), "<U1"), (np.array([None]), "object"),
    (np.array(["2020"], "M8[D]"), r"datetime64\[D\]"), (np.zeros(2, "f4,f4"), "f0"),
    (np.zeros(2, np.longdouble), "float|longdouble"),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked"), (np.str_("a"), "<U1"),
], ids=lambda x: type(x).__name__)
def test_what_is_no_tensor_is_refused_by_name(x, named):
    with pytest.raises(TypeError, match=named):
        as_leaf(x)


def test_a_cupy_array_is_refused_without_importing_cupy():
    array = type("ndarray", (), {"__module__": "cupy._core.core"})()
    before = sys.modules.get("cupy")
    with pytest.raises(TypeError, match="GPU executor, not in this version"):
        as_leaf(array)
    assert sys.modules.get("cupy") is before


def test_no_framework_is_imported_for_numpy():
    code = ("import sys, numpy; from collectives import arrays, containers; "
            "arrays.as_leaf(numpy.ones(3)).inout(); arrays.as_leaf(1.0).read(); "
            "print({'torch', 'jax', 'ml_dtypes', 'cupy'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
