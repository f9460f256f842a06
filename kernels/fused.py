"""Encode, decode and add in one pass over memory: the host kernels of every codec.

What a kernel computes is in `codec.Emit`; which kernels a codec has is up to its driver, a module
with

    make(codec, emit, adds, feedback, a, dst) -> function to compile

All kernels are C functions of one signature:

    kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter)

    dst .. wire    addresses; 0, and not touched, where the kernel has none
    n              elements
    divisor        number of ranks for a mean, else 1
    seed           64 bits, of stochastic rounding
    parameter      float64: `codec.parameter`

`encode` and its relatives below check arrays and call such a kernel, without the GIL.
"""

from ctypes import CFUNCTYPE, c_double, c_int64
from dataclasses import fields
from functools import cache
from importlib import import_module

import numpy as np
from numba import types

from collectives.dtypes import name_of
from collectives.kernels import compile as compiler
from collectives.kernels.codec import FLOATS, Codec, Emit
from collectives.kernels.floats import accumulator_of

SIGNATURE = types.void(*[types.int64] * 8, types.float64)
_PLAIN = "collectives.kernels.dense"  # makes the kernels that have no codec
_C_KERNEL = CFUNCTYPE(None, *[c_int64] * 8, c_double)


@cache
def fused_kernel(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str
                 ) -> int:
    """Address of a kernel, compiled if need be.

    Parameters
    ----------
    codec : None for PARTIAL and VALUE without `adds`
    adds : whether a wire `incoming` is decoded and added
    feedback : whether there is a residual
    a, dst : canonical names of the stored types; "" where the kernel has none
    """
    emit = Emit(emit)
    feedback = feedback and emit not in (Emit.PARTIAL, Emit.DECODE)
    adds = adds or emit is Emit.DECODE
    driver = import_module(_PLAIN if codec is None else codec.driver)
    function = driver.make(codec, emit, adds, feedback, a, dst)
    key = "-".join([_layout_key(codec), emit.name, *["adds"] * adds, *["feedback"] * feedback,
                    f"{a}>{dst}"])
    return compiler.address(function, SIGNATURE, key=key)


def _layout_key(codec: Codec | None) -> str:
    """The codec's name and the fields that its machine code depends on: not numbers told to it."""
    if codec is None:
        return "none"
    codec = codec.layout
    values = {field.name: getattr(codec, field.name) for field in fields(codec)}
    return "-".join([codec.name, *(
        name if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items() if value is not None)])


@cache
def _c_kernel(*which):
    return _C_KERNEL(fused_kernel(*which))


def encode(codec: Codec, x, residual, wire, seed: int = 0) -> None:
    """See `Codec.encode`."""
    _encode(codec, None, x, residual, wire, seed)


def decode_add_encode(codec: Codec, incoming, x, residual, wire, seed: int = 0) -> None:
    """See `Codec.decode_add_encode`."""
    if np.may_share_memory(incoming, wire):
        raise ValueError("incoming, wire: expected memory that does not overlap")
    _encode(codec, incoming, x, residual, wire, seed)


def decode(codec: Codec, wire, out) -> None:
    """See `Codec.decode`."""
    name = _check_floats("out", out)
    _check_wire(codec, "wire", wire, out.size, readable=True)
    if out.size:
        kernel = _c_kernel(codec.layout, Emit.DECODE, True, False, "", name)
        kernel(_at(out), 0, _at(wire), 0, 0, out.size, 1, 0, codec.parameter)


def decode_add(codec: Codec, wire, acc) -> None:
    """See `Codec.decode_add`."""
    name = _check_floats("acc", acc, ("float32", "float64"))
    _check_wire(codec, "wire", wire, acc.size, readable=True)
    if acc.size:
        kernel = _c_kernel(codec.layout, Emit.PARTIAL, True, False, name, name)
        kernel(_at(acc), _at(acc), _at(wire), 0, 0, acc.size, 1, 0, codec.parameter)


def _encode(codec, incoming, x, residual, wire, seed):
    name, adds, feedback = _check_floats("x", x), incoming is not None, residual is not None
    acc = accumulator_of(name)
    if feedback:
        _check_floats("residual", residual, (acc,))
        if residual.size != x.size:
            raise ValueError(f"residual: {residual.size} elements: expected those of x, {x.size}")
    if adds:
        _check_wire(codec, "incoming", incoming, x.size, readable=True)
    _check_wire(codec, "wire", wire, x.size, readable=False)
    if x.size == 0:
        return
    work = np.empty(x.size if codec.needs_work and adds and not feedback else 0, acc)
    kernel = _c_kernel(codec.layout, Emit.WIRE, adds, feedback, name, "")
    kernel(_at(work), _at(x), _at(incoming) if adds else 0, _at(residual) if feedback else 0,
           _at(wire), x.size, 1, _signed(codec.seed + seed), codec.parameter)


def _check_floats(what: str, array: np.ndarray, names=FLOATS) -> str:
    """The canonical name of a one-dimensional contiguous array's type, one of `names`."""
    name = name_of(array.dtype)
    if name not in names or not array.dtype.isnative:
        raise TypeError(f"{what}: dtype {array.dtype}: expected {' or '.join(names)}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{what}: shape {array.shape}, strides {array.strides}: expected one "
                         f"contiguous dimension")
    if what != "x" and not array.flags.writeable:
        raise ValueError(f"{what}: read-only: expected a writeable array")
    return name


def _check_wire(codec: Codec, what: str, wire: np.ndarray, n: int, readable: bool) -> None:
    """A wire to read may be shorter than its capacity if it says so itself."""
    if wire.dtype != np.uint8 or wire.ndim != 1 or not wire.flags.c_contiguous:
        raise TypeError(f"{what}: {wire.dtype}, shape {wire.shape}: expected contiguous uint8 of "
                        f"one dimension")
    nbytes = codec.wire_nbytes(n)
    if readable and codec.variable and 8 <= wire.size <= nbytes:
        nbytes = int(wire[:8].view("<i8")[0])
        if wire.size >= nbytes:
            return
    if wire.size != nbytes:
        raise ValueError(f"{what}: {wire.size} bytes: expected {nbytes} for {n} elements")


def _at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _signed(seed: int) -> int:
    """The low 64 bits as int64."""
    return (seed + 2**63) % 2**64 - 2**63
