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
from numba import njit

from collectives.kernels import floats
from collectives.kernels.codec import Codec
from collectives.kernels.scalars import divide, load, load_packed, shift_right, store

inlined = njit(inline="always")

_HALVES_AT_ONCE = 1024  # elements without a block that are gone over together
_HOST_HALVES = {"float16": (floats.saturated_float16, floats.from_float16),
                "bfloat16": (floats.saturated_bfloat16, floats.from_bfloat16)}
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
    a_size: int    # bytes
    dst_size: int
    acc_size: int
    in_place: bool  # whether dst may be a
    acc: type
    single: object      # accumulator -> float32, saturating
    narrow: object      # accumulator -> dst as stored
    widen: object       # dst as stored -> accumulator
    value: object       # (a, codes, scale, shift, residual, j) -> v
    decode: object      # (codes, scale, shift, j) -> float32
    in_field: object    # (field, count, row, full) -> number of elements


def parts_of(codec: Codec | None, adds: bool, feedback: bool, a: str, dst: str) -> Parts:
    acc = floats.accumulator_of(a, dst)
    wire = _wire(codec)
    decode = _decoder(codec, wire) if codec else None
    return Parts(
        wire, adds, feedback, _SIZE[a], _SIZE[dst], _SIZE[acc], a == dst, floats.STORED[acc],
        floats.to_single(acc), dst and floats.narrower(acc, dst), dst and floats.widener(dst, acc),
        a and _value(adds, feedback, a, acc, decode), decode, _in_field(wire.fields))


def _wire(codec: Codec | None) -> Wire:
    if codec is None or not codec.statistic:
        return Wire(_HALVES_AT_ONCE, 2 * _HALVES_AT_ONCE, 0, 16, 1, np.uint16)
    nbytes = codec.block * codec.bits // 8
    return Wire(codec.block, 4 + nbytes, 4, codec.bits, 8 // codec.bits, np.uint8)


def host_halves(codec: Codec):
    """(float32 -> uint16, uint16 -> float32): what `codec.cores` do, by the host's instructions."""
    return _HOST_HALVES[codec.name]


def _decoder(codec: Codec, wire: Wire):
    code, mask = wire.code, np.uint32(2**wire.bits - 1)
    if not codec.statistic:
        of_half = host_halves(codec)[1]
        return inlined(lambda codes, scale, shift, j: of_half(load(codes, j, code)))
    of_field = codec.cores(inlined)[3]
    if wire.fields == 1:
        return inlined(lambda codes, scale, shift, j: of_field(
            np.uint32(load(codes, j, code)), scale))
    return inlined(lambda codes, scale, shift, j: of_field(
        np.uint32(shift_right(np.uint32(load(codes, j, code)), shift) & mask), scale))


def _value(adds: bool, feedback: bool, a: str, acc: str, decode):
    widen, a_type, to_acc = floats.widener(a, acc), floats.STORED[a], floats.STORED[acc]

    @inlined
    def own(a, codes, scale, shift, residual, j):
        return widen(load(a, j, a_type))

    @inlined
    def with_incoming(a, codes, scale, shift, residual, j):
        return widen(load(a, j, a_type)) + to_acc(decode(codes, scale, shift, j))

    value = with_incoming if adds else own

    @inlined
    def with_residual(a, codes, scale, shift, residual, j):
        return value(a, codes, scale, shift, residual, j) + load(residual, j, to_acc)

    return with_residual if feedback else value


def _in_field(fields: int):
    if fields == 1:
        return inlined(lambda field, count, row, full: count)

    @inlined
    def in_field(field, count, row, full):
        left = count - field * row
        if full or left > row:
            return row
        return left if left > 0 else 0

    return in_field


def scale_at(wire: Wire, present: bool):
    """(address of a block's wire) -> its scale."""
    if present and wire.header:
        return inlined(lambda wire: load_packed(wire))
    return inlined(lambda wire: np.float32(0))


def quotient(acc: type):
    """(v, divisor) -> v / divisor in the accumulator."""
    return inlined(lambda v, divisor: divide(v, acc(divisor)))


def remainder(acc: type):
    """(v, result, divisor) -> v - divisor * result, where both are finite: so is this.

    result may be v / divisor rounded up, so the product is clipped.
    """
    largest = acc(np.finfo(acc).max)

    @inlined
    def rest(v, result, divisor):
        product = acc(divisor) * result
        product = largest if product > largest else product
        return v - (-largest if product < -largest else product)

    return rest


def decoded(parts: Parts):
    """(dst, codes, scale, shift, j): dst[j] = what the code stands for, rounded."""
    decode, narrow, acc = parts.decode, parts.narrow, parts.acc

    @inlined
    def element(dst, codes, scale, shift, j):
        store(dst, j, narrow(acc(decode(codes, scale, shift, j))))

    return element
