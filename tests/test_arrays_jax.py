"""JAX arrays: read by value; a result is a new array."""

import numpy as np
import pytest

from collectives.arrays import as_leaf
from collectives.dtypes import NAMES, carried, carrier
from tests.layouts import SHAPE, distinct

pytest.importorskip("ml_dtypes")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

NARROW = [name for name in NAMES if name not in ("int64", "uint64", "float64", "complex128")]


@pytest.mark.parametrize("name", NARROW)
class TestEveryDtype:
    def test_an_array_is_read_in_logical_order(self, name):
        values = distinct(name)
        for x in (jnp.asarray(values), jnp.asarray(values.T).T):
            leaf = as_leaf(x)
            assert (leaf.framework, leaf.dtype, leaf.shape) == ("jax", name, SHAPE)
            assert leaf.read().dtype == carrier(name) and leaf.value() is x
            np.testing.assert_array_equal(leaf.read(), carried(values, name).reshape(-1))

    @pytest.mark.parametrize("shape", [None, (), (2, *SHAPE), (0,)])
    def test_a_result_is_a_new_array_of_the_same_dtype(self, name, shape):
        x = jnp.asarray(distinct(name))
        fresh = as_leaf(x).empty(shape)
        want = distinct(name, 40, SHAPE if shape is None else shape)
        buffer, commit = fresh.target()
        buffer[:] = carried(want, name).reshape(-1)
        commit()
        y = fresh.value()
        assert isinstance(y, jax.Array) and y.dtype == x.dtype and y is fresh.value()
        np.testing.assert_array_equal(np.asarray(y), want)
        np.testing.assert_array_equal(np.asarray(x), distinct(name))


def test_an_array_cannot_be_written():
    leaf = as_leaf(jnp.ones(3))
    assert leaf.immutable and not leaf.writable
    for how in (leaf.inout, leaf.target):
        with pytest.raises(ValueError, match="immutable"):
            how()


def test_wide_types_stay_wide_where_jax_has_them():
    with jax.enable_x64(True):
        fresh = as_leaf(jnp.ones(3, "float64")).empty()
        fresh.target()[0][:] = 1 + 2.0**-52
        assert fresh.value().dtype == "float64" and (np.asarray(fresh.value()) > 1).all()


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=lambda f: f.__name__)
def test_a_traced_value_is_refused_with_the_way_out(transform):
    with pytest.raises(TypeError, match="outside jit"):
        transform(lambda x: as_leaf(x).value())(jnp.ones(3) if transform is jax.vmap else 1.0)


@pytest.mark.parametrize("make, words", [
    (lambda: jax.random.key(0), "key<fry>"),
    (lambda: jnp.zeros(2, "float8_e5m2"), "float8_e5m2"),
    (lambda: jax.ShapeDtypeStruct((2,), "float32"), "ShapeDtypeStruct"),
])
def test_what_holds_no_numbers_of_ours_is_refused(make, words):
    with pytest.raises(TypeError, match=words):
        as_leaf(make())
