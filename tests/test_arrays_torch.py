"""PyTorch CPU tensors: zero-copy, in every memory format, behind the back of autograd."""

import numpy as np
import pytest

from collectives.arrays import as_leaf, check_out, overlap
from collectives.dtypes import NAMES, carrier
from tests.layouts import BASE, LAYOUTS, SHAPE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def distinct(name: str, start: int = 1, shape=SHAPE):
    """start, start + 1, ... exact in every dtype; a pattern without symmetry for bool."""
    numbers = torch.arange(start, start + int(np.prod(shape)))
    if name == "bool":
        numbers = (numbers * numbers) % 7 < 2
    if name.startswith("complex"):
        numbers = numbers + 1j * (numbers + 50)
    return numbers.reshape(shape).to(getattr(torch, name))


def raw(x) -> bytes:
    """The bytes of a tensor in logical order."""
    flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def bits(x, name: str) -> np.ndarray:
    """What a buffer of `x` must hold."""
    return np.frombuffer(raw(x), carrier(name))


def placed(name: str, layout: str, start: int):
    """A poisoned base, the view of it that `layout` cuts, and the values in that view."""
    values = distinct(name, start)
    nbytes = BASE[0] * BASE[1] * values.element_size()
    base = torch.full((nbytes,), 0xAA, dtype=torch.uint8).view(values.dtype).reshape(BASE)
    view = LAYOUTS[layout](base)
    view.copy_(values)
    return base, view, values


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
class TestEveryLayout:
    def test_a_buffer_is_flat_and_in_logical_order(self, name, layout):
        _, view, values = placed(name, layout, start=1)
        leaf = as_leaf(view)
        assert (leaf.framework, leaf.dtype, leaf.shape) == ("torch", name, SHAPE)
        assert leaf.writable and not leaf.immutable
        for buffer in (leaf.read(), leaf.inout()[0]):
            assert buffer.dtype == carrier(name) and buffer.flags.carray
            np.testing.assert_array_equal(buffer, bits(values, name))

    @pytest.mark.parametrize("how", ["inout", "target"])
    def test_commit_writes_the_view_and_nothing_around_it(self, name, layout, how):
        base, view, _ = placed(name, layout, start=1)
        want, _, values = placed(name, layout, start=40)
        leaf = as_leaf(view)
        version = view._version
        buffer, commit = getattr(leaf, how)()
        buffer[:] = bits(values, name)
        commit()
        assert raw(base) == raw(want)
        assert leaf.value() is view and view._version > version


@pytest.mark.parametrize("name", NAMES)
def test_a_contiguous_tensor_is_its_own_buffer(name):
    x = distinct(name)
    for buffer in (as_leaf(x).read(), as_leaf(x).inout()[0], as_leaf(x).target()[0]):
        assert buffer.ctypes.data == x.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_a_new_tensor_is_its_own_buffer(name):
    fresh = as_leaf(distinct(name)).empty((5, 2))
    buffer, commit = fresh.target()
    buffer[:] = bits(distinct(name, 7, (5, 2)), name)
    commit()
    y = fresh.value()
    assert y.dtype == getattr(torch, name) and y.data_ptr() == buffer.ctypes.data
    assert torch.equal(y, distinct(name, 7, (5, 2)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "bool"])
def test_zero_dimensions_and_zero_elements(name, shape):
    x = distinct(name, 1, shape)
    buffer, commit = as_leaf(x).inout()
    assert buffer.shape == (x.numel(),)
    buffer[:] = 0
    commit()
    assert x.shape == shape and not x.any()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_channels_last_is_read_in_logical_order_and_kept(name):
    values = distinct(name, 1, (2, 3, 4, 4))
    x = values.clone().contiguous(memory_format=torch.channels_last)
    buffer, commit = as_leaf(x).inout()
    np.testing.assert_array_equal(buffer, bits(values, name))
    buffer[:] = bits(values + 1, name)
    commit()
    assert torch.equal(x, values + 1) and x.is_contiguous(memory_format=torch.channels_last)
    fresh = as_leaf(x).empty().value()
    assert fresh.shape == x.shape and fresh.is_contiguous(memory_format=torch.channels_last)


def test_a_tensor_on_numpy_memory_changes_the_array():
    array = np.arange(4.0)
    buffer, commit = as_leaf(torch.from_numpy(array)).inout()
    buffer *= 2
    commit()
    assert array.tolist() == [0, 2, 4, 6]
    assert overlap(as_leaf(array), as_leaf(torch.from_numpy(array))) == "same"


def test_a_parameter_is_written_behind_the_back_of_autograd():
    x = torch.nn.Parameter(torch.ones(3))
    version = x._version
    buffer, commit = as_leaf(x).inout()
    buffer *= 2
    commit()
    assert x.tolist() == [2, 2, 2] and x._version > version
    assert x.requires_grad and x.is_leaf and x.grad_fn is None


def test_backward_after_a_reduction_of_saved_data_raises():
    x = torch.nn.Parameter(torch.ones(3))
    loss = (x * x).sum()
    as_leaf(x).inout()[1]()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_inside_the_graph_keeps_its_history():
    y = torch.nn.Parameter(torch.ones(3)) * 2
    history = y.grad_fn
    buffer, commit = as_leaf(y).inout()
    buffer += 1
    commit()
    assert y.tolist() == [3, 3, 3] and y.grad_fn is history and y.requires_grad


def test_a_new_result_has_no_history():
    y = as_leaf(torch.nn.Parameter(torch.ones(3)) * 2).empty().value()
    assert type(y) is torch.Tensor and not y.requires_grad and y.grad_fn is None


def test_inference_tensors_are_tensors():
    with torch.inference_mode():
        x = torch.ones(3)
        buffer, commit = as_leaf(x).inout()
        buffer += 1
        commit()
        assert x.tolist() == [2, 2, 2]


LAZY = {
    "conjugate": lambda x: x.conj(),
    "negative": lambda x: x.conj().imag,
    "both": lambda x: torch._neg_view(x.conj()),
    "strided": lambda x: x.conj()[::2],
}


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("how", ["inout", "target"])
def test_lazy_conjugation_and_negation_are_resolved(lazy, how):
    memory = distinct("complex64", 1, (6,))
    x = LAZY[lazy](memory)
    want = x.clone() * 2
    leaf = as_leaf(x)
    version = memory._version
    buffer, commit = getattr(leaf, how)()
    buffer[:] = leaf.read() * 2
    commit()
    assert torch.equal(x, want) and leaf.value() is x and memory._version > version
    assert not leaf.empty().value().is_conj()


def test_an_expanded_tensor_can_only_be_read():
    for x in (torch.ones(1).expand(3), torch.ones(1, dtype=torch.cfloat).conj().expand(3)):
        leaf = as_leaf(x)
        assert not leaf.writable and leaf.read().tolist() == [1, 1, 1]
        for how in (leaf.inout, leaf.target):
            with pytest.raises(ValueError, match="share memory"):
                how()


def test_out_of_another_framework_is_taken_if_the_dtype_fits():
    check_out(as_leaf(np.ones(3)), as_leaf(torch.empty(3, dtype=torch.float64)), (3,))
    with pytest.raises(TypeError, match="out has dtype float32: expected float64"):
        check_out(as_leaf(np.ones(3)), as_leaf(torch.empty(3)), (3,))


def fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(2)


@pytest.mark.parametrize("make, words", [
    (lambda: torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,)), "to_dense"),
    (lambda: torch.eye(3).to_sparse_csr(), "to_dense"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    (lambda: torch.ones(2, device="meta"), "meta"),
    (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8), "quint8"),
    (lambda: torch.zeros(2).to(torch.float8_e5m2), "float8_e5m2"),
    (lambda: torch.zeros(2, dtype=torch.complex32), "complex32"),
    (fake, "FakeTensor"),
    (lambda: torch.float32, "torch.dtype"),
    (lambda: torch.nn.Linear(1, 1), "Linear"),
])
def test_what_has_no_dense_cpu_memory_is_refused(make, words):
    with pytest.raises(TypeError, match=words):
        as_leaf(make())


def test_inside_a_function_transform_the_error_says_so():
    with pytest.raises(TypeError, match=r"torch\.func"):
        torch.func.vmap(lambda row: as_leaf(row).value())(torch.ones(2, 2))
