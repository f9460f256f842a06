"""What the kernels of `dense` are made of: constants, and functions that the compiler inlines.

Arguments that many of them have:

    a, residual    addresses of the first element of a field of a block
    codes          address of the block's codes
    scale          float32 of that block, 0 if there is none
    shift          uint32, of the field within a byte
    j              index within the field
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import from_dtype, njit, types
from numba.extending import intrinsic

from collectives.kernels import floats
from collectives.kernels.codec import Codec
from collectives.kernels.scalars import load

inlined = njit(inline="always")

_HALVES_AT_ONCE = 1024  # elements without a block that are gone over together
_HALVES = {"float16": (floats.float16_field, floats.float16_value),
           "bfloat16": (floats.bfloat16_field, floats.bfloat16_value)}
_SIZE = {"": 0, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Wire(NamedTuple):
    """A wire's layout, as constants for the compiler."""

    block: int     # elements
    nbytes: int    # of a full block
    header: int    # bytes before a block's codes
    bits: int      # of a code
    fields: int    # codes in a byte, or in two
    code: type     # NumPy type that holds them


class Parts(NamedTuple):
    """Constants and functions of one kernel."""

    wire: Wire
    adds: bool
    feedback: bool
    a: str                     # names of types
    dst: str
    acc: str
    sizes: tuple[int, int, int]  # bytes of an element of a, of dst, of the accumulator
    value: object              # (a, codes, scale, shift, residual, j) -> v
    code: object               # (float32, inverse, draw) -> code
    worth: object              # (code, scale) -> float32 that it stands for
    field: object              # (code) -> uint32
    decode: object             # (uint32 field, scale) -> float32
    get: object                # (codes, j, shift) -> uint32 field
    put: object                # (codes, j, shift, field)


def parts_of(codec: Codec | None, adds: bool, feedback: bool, a: str, dst: str) -> Parts:
    acc = floats.accumulator_of(a, dst)
    wire, (code, worth, field, decode) = _wire(codec), _coders(codec)
    get = _getter(wire)
    value = a and _value(adds, feedback, a, acc, get, decode)
    return Parts(wire, adds, feedback, a, dst, acc, (_SIZE[a], _SIZE[dst], _SIZE[acc]), value,
                 code, worth, field, decode, get, _putter(wire))


def _wire(codec: Codec | None) -> Wire:
    if codec is None or not codec.statistic:
        return Wire(_HALVES_AT_ONCE, 2 * _HALVES_AT_ONCE, 0, 16, 1, np.uint16)
    nbytes = codec.block * codec.bits // 8
    return Wire(codec.block, 4 + nbytes, 4, codec.bits, 8 // codec.bits, np.uint8)


def _coders(codec: Codec | None):
    """code, worth, field and decode of `Parts`; codes are fields, or whole float32 of levels."""
    if codec is None:
        return None, None, None, None
    same = inlined(lambda code: code)
    if not codec.statistic:
        encode, decode = _HALVES[codec.name]
        return encode, decode, same, decode
    _, _, encode, decode = codec.cores(inlined)
    if not hasattr(codec, "codes"):
        return encode, decode, same, decode
    code, worth = codec.codes(inlined)
    mask = np.int32(2**codec.bits - 1)
    return code, worth, inlined(lambda code: np.uint32(np.int32(code) & mask)), decode


def _getter(wire: Wire):
    code, mask, single = from_dtype(np.dtype(wire.code)), 2**wire.bits - 1, wire.fields == 1

    def codegen(context, builder, signature, args):
        field = builder.zext(builder.load(_at(builder, code, *args[:2])), ir.IntType(32))
        if single:
            return field
        return builder.and_(builder.lshr(field, args[2]), ir.IntType(32)(mask))

    return intrinsic(lambda typingctx, codes, j, shift: (
        types.uint32(types.int64, types.int64, types.uint32), codegen))


def _putter(wire: Wire):
    """Writes the field; fields after the first join what is there, which is 0 at their place."""
    code, single = from_dtype(np.dtype(wire.code)), wire.fields == 1

    def codegen(context, builder, signature, args):
        where, field = _at(builder, code, *args[:2]), args[3]
        if not single:
            field = builder.or_(builder.shl(field, args[2]),
                                builder.zext(builder.load(where), ir.IntType(32)))
        builder.store(builder.trunc(field, where.type.pointee), where)
        return context.get_dummy_value()

    return intrinsic(lambda typingctx, codes, j, shift, field: (
        types.void(types.int64, types.int64, types.uint32, types.uint32), codegen))


def _at(builder, code, address, j):
    pointer = ir.IntType(code.bitwidth).as_pointer()
    return builder.gep(builder.inttoptr(address, pointer), [j])


def _value(adds: bool, feedback: bool, a: str, acc: str, get, decode):
    widen, stored, to_acc = floats.widener(a, acc), floats.STORED[a], floats.STORED[acc]

    def own(a, codes, scale, shift, residual, j):
        return widen(load(a, j, stored))

    def own_and_incoming(a, codes, scale, shift, residual, j):
        return widen(load(a, j, stored)) + to_acc(decode(get(codes, j, shift), scale))

    def own_and_residual(a, codes, scale, shift, residual, j):
        return widen(load(a, j, stored)) + load(residual, j, to_acc)

    def all_three(a, codes, scale, shift, residual, j):
        return (widen(load(a, j, stored)) + to_acc(decode(get(codes, j, shift), scale))
                + load(residual, j, to_acc))

    return inlined([[own, own_and_residual], [own_and_incoming, all_three]][adds][feedback])


@inlined
def in_field(field, count, row):
    """How many of a block's `count` elements are in a field of its `row` bytes."""
    left = count - field * row
    return row if left > row else (left if left > 0 else 0)
