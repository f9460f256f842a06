"""Sixteen neighbours at once: explicit vectors where the loop vectoriser does not find them.

Loops that search for the few large elements look at blocks of LANES and skip most of them.  Such a
block has a result per block, a mask or a maximum, and compiles badly as a loop.

The *key* of an element is the bit pattern of its magnitude as float32, as it would be sent
(`codecs.pairs`).  So keys order like magnitudes, Inf above numbers; every NaN has the key NAN_KEY.

Functions are intrinsics, which cost a fraction of the compile time of inlined Python functions.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from collectives.kernels.floats import STORED

LANES = 16
INF_KEY = 0x7F800000
NAN_KEY = INF_KEY + 1

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_LARGEST = float(np.finfo(np.float32).max)


@intrinsic(prefer_literal=True)
def reserve(typingctx, nbytes):
    """Address of `nbytes` (a constant) of stack, valid until the calling C function returns."""
    length = nbytes.literal_value

    def codegen(context, builder, signature, args):
        with builder.goto_entry_block():  # Numba's own helper would also write it, byte by byte
            memory = builder.alloca(ir.ArrayType(_I8, length))
        memory.align = 64
        return builder.ptrtoint(memory, _I64)

    return types.int64(nbytes), codegen


@intrinsic
def clear(typingctx, address, nbytes):
    """Set bytes to 0."""
    def codegen(context, builder, signature, args):
        cgutils.memset(builder, builder.inttoptr(args[0], _I8.as_pointer()), args[1], 0)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), codegen


@intrinsic
def count_up(typingctx, counts, bucket, last):
    """One more in counter `bucket`, or in the last one if that is before it; uint32 each."""
    def codegen(context, builder, signature, args):
        counts, bucket, last = args
        bucket = builder.select(builder.icmp_signed("<", bucket, last), bucket, last)
        where = builder.gep(builder.inttoptr(counts, _I32.as_pointer()), [bucket])
        builder.store(builder.add(builder.load(where), _I32(1)), where)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def lowest(typingctx, mask):
    """Position of the lowest bit that is set; `mask` is not 0."""
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], _I1(1))
    return types.int64(types.int64), codegen


@intrinsic
def ones(typingctx, mask):
    """How many bits are set."""
    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])
    return types.int64(types.int64), codegen


@intrinsic
def width(typingctx, number):
    """How many bits it takes; 0 for 0."""
    def codegen(context, builder, signature, args):
        return builder.sub(_I64(64), builder.ctlz(args[0], _I1(0)))
    return types.int64(types.int64), codegen


@intrinsic
def least(typingctx, x, y):
    """The lesser of two integers; Numba compiles `min` as a function of its own."""
    def codegen(context, builder, signature, args):
        return builder.select(builder.icmp_signed("<", *args), *args)
    return types.int64(types.int64, types.int64), codegen


@intrinsic
def first_lanes(typingctx, count):
    """A bit for each lane before `count`."""
    def codegen(context, builder, signature, args):
        few = builder.select(builder.icmp_signed("<", args[0], _I64(LANES)), args[0], _I64(LANES))
        return builder.sub(builder.shl(_I64(1), few), _I64(1))
    return types.int64(types.int64), codegen


@intrinsic
def where_finite(typingctx, x, new, old):
    """`new` where x is neither Inf nor NaN, else `old`; all of one float type."""
    def codegen(context, builder, signature, args):
        x, new, old = args
        difference = builder.fsub(x, x)
        return builder.select(builder.fcmp_ordered("==", difference, difference), new, old)
    return x(x, x, x), codegen


@cache
def lanes(stored: str, divides: bool) -> SimpleNamespace:
    """Functions of the element, or the LANES elements, of type `stored` at an address.

    sent(address, divisor) -> float32 : what is sent for it
    key(address, divisor) -> int64 : the key of that
    peak(address, divisor) -> int64 : the largest key
    reaching(address, divisor, floor) -> int64 : bit j is set if the key of element j is `floor` or
        more; floor <= NAN_KEY
    add_squares(address, divisor, sums) : add the square of element j, as sent, to the float64
        number j at `sums`; 0 if it is not finite

    divisor : of the accumulator's type; elements are divided by it if `divides`
    """
    number = types.float64 if stored == "float64" else types.float32

    def elements(builder, args, count: int):
        return _load(builder, stored, args[0], args[1] if divides else None, count)

    def sent(builder, args):
        value = _first(builder, elements(builder, args, 1))
        return builder.select(builder.fcmp_unordered("uno", value, value), _FLOAT(np.nan), value)

    def key(builder, args):
        return _key(builder, _first(builder, _bits(builder, elements(builder, args, 1))))

    def peak(builder, args):
        bits = _bits(builder, elements(builder, args, LANES))
        while bits.type.count > 1:
            half = bits.type.count // 2
            low, high = (_part(builder, bits, start, half) for start in (0, half))
            bits = builder.select(builder.icmp_signed(">", low, high), low, high)
        return _key(builder, _first(builder, bits))

    def reaching(builder, args):
        floor = _spread(builder, builder.trunc(args[2], _I32), LANES)
        hits = builder.icmp_signed(">=", _bits(builder, elements(builder, args, LANES)), floor)
        return builder.zext(builder.bitcast(hits, ir.IntType(LANES)), _I64)

    def add_squares(builder, args):
        values = elements(builder, args, LANES)
        finite = builder.icmp_signed("<", _bits(builder, values), _constant(_I32, INF_KEY, LANES))
        values = builder.select(finite, values, _constant(_FLOAT, 0.0, LANES))
        values = builder.fpext(values, ir.VectorType(_DOUBLE, LANES))
        where = builder.inttoptr(args[2], values.type.as_pointer())
        total = builder.fadd(builder.load(where, align=8), builder.fmul(values, values))
        builder.store(total, where, align=8)

    integer = types.int64
    return SimpleNamespace(
        sent=_binary(sent, types.float32(integer, number)),
        key=_binary(key, integer(integer, number)), peak=_binary(peak, integer(integer, number)),
        reaching=_ternary(reaching, integer(integer, number, integer)),
        add_squares=_ternary(add_squares, types.void(integer, number, integer)))


def _binary(build, signature):
    return intrinsic(lambda typingctx, x, y: (signature, _codegen(build)))


def _ternary(build, signature):
    return intrinsic(lambda typingctx, x, y, z: (signature, _codegen(build)))


def _codegen(build):
    def codegen(context, builder, signature, args):
        result = build(builder, args)
        return context.get_dummy_value() if result is None else result
    return codegen


def _load(builder, stored: str, address, divisor, count: int):
    """`count` elements as float32, after the division; a finite float64 is clipped to float32."""
    nbytes = np.dtype(STORED[stored]).itemsize
    raw = ir.VectorType(ir.IntType(8 * nbytes), count)
    values = builder.load(builder.inttoptr(address, raw.as_pointer()), align=nbytes)
    float32 = ir.VectorType(_FLOAT, count)
    if stored == "bfloat16":
        wide = builder.zext(values, ir.VectorType(_I32, count))
        values = builder.bitcast(builder.shl(wide, _constant(_I32, 16, count)), float32)
    elif stored == "float16":
        half = builder.bitcast(values, ir.VectorType(ir.HalfType(), count))
        values = builder.fpext(half, float32)
    else:
        kind = _DOUBLE if stored == "float64" else _FLOAT
        values = builder.bitcast(values, ir.VectorType(kind, count))
    if divisor is not None:
        values = builder.fdiv(values, _spread(builder, divisor, count))
    return _clip(builder, values) if stored == "float64" else values


def _clip(builder, values):
    count = values.type.count
    for sign, beyond in ((1.0, ">"), (-1.0, "<")):
        limit, infinity = (_constant(_DOUBLE, sign * x, count) for x in (_LARGEST, float("inf")))
        clipped = builder.and_(builder.fcmp_ordered(beyond, values, limit),
                               builder.fcmp_ordered("!=", values, infinity))
        values = builder.select(clipped, limit, values)
    return builder.fptrunc(values, ir.VectorType(_FLOAT, count))


def _bits(builder, values):
    """Keys, but for those of NaN."""
    count = values.type.count
    bits = builder.bitcast(values, ir.VectorType(_I32, count))
    return builder.and_(bits, _constant(_I32, 0x7FFFFFFF, count))


def _key(builder, bits):
    over = builder.icmp_signed(">", bits, _I32(NAN_KEY))
    return builder.zext(builder.select(over, _I32(NAN_KEY), bits), _I64)


def _constant(element, value, count: int):
    return ir.Constant(ir.VectorType(element, count), [value] * count)


def _first(builder, vector):
    return builder.extract_element(vector, _I32(0))


def _spread(builder, scalar, count: int):
    one = ir.VectorType(scalar.type, 1)
    single = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(single, ir.Constant(one, ir.Undefined),
                                  _constant(_I32, 0, count))


def _part(builder, vector, start: int, count: int):
    picks = ir.Constant(ir.VectorType(_I32, count), list(range(start, start + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), picks)
