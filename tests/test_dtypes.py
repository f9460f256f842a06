"""Which element types there are, how they travel, and which operations mean something for them."""

import numpy as np
import pytest

from collectives.dtypes import (
    NAMES,
    OPS,
    accumulator,
    carried,
    carrier,
    check_op,
    itemsize,
    name_of,
)

INTEGERS = [name for name in NAMES if "int" in name]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
VERBS = ["allreduce", "reduce", "reduce_scatter"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bfloat16"])
@pytest.mark.parametrize("order", ["=", "<", ">"])
def test_a_dtype_has_one_name_in_every_byte_order(name, order):
    assert name_of(np.dtype(name).newbyteorder(order)) == name


@pytest.mark.parametrize("order", ["=", ">"])
def test_bfloat16_is_known_by_name(order):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert name_of(np.dtype(bfloat16).newbyteorder(order)) == "bfloat16"


@pytest.mark.parametrize("char", "?bhilqBHILQefdFD")
def test_c_types_are_named_by_kind_and_size(char):
    dtype = np.dtype(char)
    assert name_of(dtype) == dtype.newbyteorder("=").name
    assert name_of(dtype.type) == name_of(char) == name_of(dtype)


@pytest.mark.parametrize("dtype", [
    np.dtype([("a", "u8"), ("b", "u8")]), np.dtype(object), np.dtype("U3"), np.dtype("S4"),
    np.dtype("M8[s]"), np.dtype("m8[s]"), np.dtype("V8"), np.dtype((np.float32, 3)),
], ids=str)
def test_an_unsupported_dtype_is_named_with_those_supported(dtype):
    with pytest.raises(TypeError) as error:
        name_of(dtype)
    assert str(dtype) in str(error.value) and "bfloat16" in str(error.value)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 here")
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_extended_precision_is_refused(dtype):
    with pytest.raises(TypeError, match="unsupported dtype"):
        name_of(dtype)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4", "uint2"])
def test_small_ml_dtypes_are_refused(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    with pytest.raises(TypeError, match=name):
        name_of(dtype)


@pytest.mark.parametrize("dtype", [None, int | str, "no such type"])
def test_what_is_no_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match="unsupported dtype"):
        name_of(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_carrier_is_native_and_of_the_same_size(name):
    assert carrier(name).isnative and carrier(name).itemsize == itemsize(name)
    assert carrier(name).isbuiltin == 1  # NumPy's own, so that no other package is needed


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_carried_bfloat16_keeps_its_bits_and_byte_order(order):
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    x = np.array([1.0, -2.0, 3.5], bfloat16).astype(bfloat16.newbyteorder(order))
    bits = carried(x, "bfloat16")
    assert np.shares_memory(x, bits)
    assert bits.tolist() == [0x3F80, 0xC000, 0x4060]


@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_accumulates_in_float32(name, op):
    assert accumulator(name, op) == "float32"


@pytest.mark.parametrize("name", INTEGERS)
def test_the_mean_of_integers_accumulates_in_64_bits(name):
    assert accumulator(name, "mean") == ("uint64" if name.startswith("u") else "int64")


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_sums_of_integers_wrap_in_their_own_type(name, op):
    assert accumulator(name, op) == name


@pytest.mark.parametrize("name", NAMES)
def test_max_and_min_need_no_wider_type(name):
    assert accumulator(name, "max") == accumulator(name, "min") == name


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", INTEGERS + FLOATS)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
def test_numbers_have_all_arithmetic_operations(name, op, verb):
    assert check_op(name, op, verb) == op


@pytest.mark.parametrize("op, logical", [
    ("sum", "or"), ("max", "or"), ("or", "or"), ("prod", "and"), ("min", "and"), ("and", "and"),
])
def test_operations_on_bool_are_logical(op, logical):
    assert check_op("bool", op, "allreduce") == logical


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name, op", [
    ("bool", "mean"), *((name, op) for name in COMPLEX for op in ("max", "min")),
    *((name, op) for name in NAMES if name != "bool" for op in ("and", "or")),
])
def test_a_pair_that_means_nothing_is_a_type_error_naming_both(name, op, verb):
    with pytest.raises(TypeError, match=f"{verb}.*'{op}'.*{name}"):
        check_op(name, op, verb)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ["band", "average", "SUM", "", None, np.add])
def test_an_unknown_operation_is_a_value_error_listing_those_known(name, op):
    with pytest.raises(ValueError, match=", ".join(OPS)):
        check_op(name, op, "reduce")
