"""How the float types are stored, widened to an accumulator, and rounded back with saturation.

    accumulator    float64 if any type involved is float64, else float32
    rounding       to nearest, ties to even; a finite number that would become Inf becomes the
                   largest finite one instead; Inf and NaN stay what they are

A float64 goes to a 16-bit type by way of float32.  The 16-bit types are stored as uint16, because
Numba has no arithmetic on them.

Functions for compiled code are intrinsics, made for given types: they cost a fraction of the
compile time of inlined Python functions, and none of Numba's tests for errors.
"""

from functools import cache

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.extending import intrinsic

# Type of the bytes in memory.
STORED = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32,
          "float64": np.float64}
LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120,
           "float32": 2.0**128 - 2.0**104, "float64": float(np.finfo(np.float64).max)}
_I16, _I32, _HALF, _SINGLE = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()
_IR = {"float32": _SINGLE, "float64": ir.DoubleType()}


def accumulator_of(*names: str) -> str:
    """The type to compute in; empty names do not count."""
    return "float64" if "float64" in names else "float32"


@cache
def widener(name: str, acc: str):
    """(number of type `name`, as stored) -> accumulator."""
    return _unary(name, acc, lambda builder, x: _widen(builder, x, name, acc))


@cache
def narrower(acc: str, name: str):
    """(accumulator) -> number of type `name`, as stored."""
    return _unary(acc, name, lambda builder, x: _narrow(builder, x, acc, name))


def to_single(acc: str):
    """(accumulator) -> float32."""
    return narrower(acc, "float32")


@cache
def quotient(acc: str, divides: bool = True):
    """(v, divisor) -> v / divisor as IEEE has it, or v."""
    return _nary(acc, acc, 2, lambda builder, v, divisor:
                 builder.fdiv(v, divisor) if divides else v)


@cache
def encodable(acc: str, divides: bool):
    """(v, divisor) -> float32: v, or v / divisor."""
    return _nary(acc, "float32", 2, lambda builder, v, divisor: _narrow(
        builder, builder.fdiv(v, divisor) if divides else v, acc, "float32"))


@cache
def leftover(acc: str, dst: str, each: bool):
    """(v, result, divisor, old) -> the residual, of the accumulator's type as all of these.

    v - divisor * (result, rounded to the type of dst), or v - result if dst is "".  Finite where v
    and result are: result may be v / divisor rounded up, so the product is clipped.
    each : `old` where v is not finite
    """
    def build(builder, v, result, divisor, old):
        if dst:
            result = _widen(builder, _narrow(builder, result, acc, dst), dst, acc)
            result = _clip(builder, builder.fmul(divisor, result), acc, LARGEST[acc], infinite=True)
        new = builder.fsub(v, result)
        return _where_finite(builder, v, new, old, acc) if each else new

    return _nary(acc, acc, 4, build)


@intrinsic
def larger(typingctx, bits, x):
    """The greater of `bits` and the bit pattern of |x|: NaN > Inf > numbers.

    x : float32;  bits : uint32
    """
    def codegen(context, builder, signature, args):
        size = builder.and_(builder.bitcast(args[1], _I32), _I32(0x7FFFFFFF))
        return builder.select(builder.icmp_unsigned(">", size, args[0]), size, args[0])
    return types.uint32(types.uint32, types.float32), codegen


def _unary(given: str, result: str, build):
    argument, returns = (from_dtype(np.dtype(STORED[name])) for name in (given, result))

    @intrinsic
    def convert(typingctx, x):
        return returns(argument), lambda context, builder, signature, args: build(builder, *args)

    return convert


def _nary(acc: str, result: str, arity: int, build):
    number, returns = from_dtype(np.dtype(acc)), from_dtype(np.dtype(result))
    typed = returns(*[number] * arity), (
        lambda context, builder, signature, args: build(builder, *args))
    if arity == 2:
        return intrinsic(lambda typingctx, x, y: typed)
    return intrinsic(lambda typingctx, x, y, z, w: typed)


def _widen(builder, x, name: str, acc: str):
    if name == "float16":
        x = builder.fpext(builder.bitcast(x, _HALF), _SINGLE)
    elif name == "bfloat16":
        x = builder.bitcast(builder.shl(builder.zext(x, _I32), _I32(16)), _SINGLE)
    return builder.fpext(x, _IR[acc]) if x.type != _IR[acc] else x


def _narrow(builder, x, acc: str, name: str):
    if name == acc:
        return x
    if name == "float64":
        return builder.fpext(x, _IR[name])
    if acc == "float64":
        x = builder.fptrunc(_clip(builder, x, acc, LARGEST["float32"]), _SINGLE)
    if name == "float32":
        return x
    x = _clip(builder, x, "float32", LARGEST[name])
    if name == "float16":
        return builder.bitcast(builder.fptrunc(x, _HALF), _I16)
    return _to_bfloat16(builder, x)


def _to_bfloat16(builder, x):
    bits = builder.bitcast(x, _I32)
    even = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(builder.add(bits, _I32(0x7FFF)), even)
    quiet = builder.or_(bits, _I32(0x00400000))  # rounding up could turn a NaN into an Inf
    bits = builder.select(builder.fcmp_ordered("==", x, x), rounded, quiet)
    return builder.trunc(builder.lshr(bits, _I32(16)), _I16)


def _clip(builder, x, acc: str, largest: float, infinite: bool = False):
    """x, but at most `largest` in magnitude where it is finite, or also where it is `infinite`."""
    kind = _IR[acc]
    size = _magnitude(builder, x, acc)
    beyond = builder.fcmp_ordered(">", size, kind(largest))
    if not infinite:
        beyond = builder.and_(beyond, builder.fcmp_ordered("<", size, kind(np.inf)))
    copysign = builder.module.declare_intrinsic(
        "llvm.copysign", [kind], ir.FunctionType(kind, [kind, kind]))
    return builder.select(beyond, builder.call(copysign, [kind(largest), x]), x)


def _where_finite(builder, v, new, old, acc: str):
    """`new` where v is finite, else `old`."""
    finite = builder.fcmp_ordered("<", _magnitude(builder, v, acc), _IR[acc](np.inf))
    # A stored choice between this and what was there is made a masked store, which some
    # processors do very slowly; adding 0, which is no identity for -0, prevents that.
    return builder.select(finite, new, builder.fadd(old, _IR[acc](0.0)))


def _magnitude(builder, x, acc: str):
    return builder.call(builder.module.declare_intrinsic("llvm.fabs", [_IR[acc]]), [x])


@intrinsic
def float16_field(typingctx, x, inverse, draw):
    """A code of the float16 codec: (float32, unused, unused) -> uint32."""
    return _half_field("float16")


@intrinsic
def bfloat16_field(typingctx, x, inverse, draw):
    """A code of the bfloat16 codec: (float32, unused, unused) -> uint32."""
    return _half_field("bfloat16")


@intrinsic
def float16_value(typingctx, field, scale):
    """What a code of the float16 codec stands for: (uint32, unused) -> float32."""
    return _half_value("float16")


@intrinsic
def bfloat16_value(typingctx, field, scale):
    """What a code of the bfloat16 codec stands for: (uint32, unused) -> float32."""
    return _half_value("bfloat16")


def _half_field(name: str):
    def codegen(context, builder, signature, args):
        return builder.zext(_narrow(builder, args[0], "float32", name), _I32)
    return types.uint32(types.float32, types.float32, types.uint32), codegen


def _half_value(name: str):
    def codegen(context, builder, signature, args):
        return _widen(builder, builder.trunc(args[0], _I16), name, "float32")
    return types.float32(types.uint32, types.float32), codegen
