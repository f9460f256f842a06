"""Scalar cores: load a stored number into its accumulator type, and store it back.

Half-precision numbers travel as uint16 bit patterns, because Numba has no float16 arithmetic on
the host.  IEEE half uses LLVM's own conversions (one instruction where the CPU has F16C or
FP16); bfloat16 is the upper half of a float32, rounded to nearest even, with NaN kept a NaN.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 128
LINE_NBYTES = 64  # of a cache


@intrinsic
def load(typingctx, address, index, dtype):
    """Element `index` of the array of `dtype` (a NumPy type) at the integer `address`."""
    element = dtype.instance_type

    def codegen(context, builder, signature, args):
        where = _element(context, builder, element, args[0], args[1])
        return context.data_model_manager[element].load_from_data_pointer(builder, where)

    return element(types.int64, types.int64, dtype), codegen


@intrinsic
def store(typingctx, address, index, value):
    """Write `value` to element `index` of the array of its type at the integer `address`."""
    def codegen(context, builder, signature, args):
        element = signature.args[2]
        where = _element(context, builder, element, args[0], args[1])
        builder.store(context.data_model_manager[element].as_data(builder, args[2]), where)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


def _element(context, builder, element, address, index):
    pointer = context.data_model_manager[element].get_data_type().as_pointer()
    return builder.gep(builder.inttoptr(address, pointer), [index])


@intrinsic
def load_packed(typingctx, address):
    """The float32 at `address`, which need not be a multiple of 4."""
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        return builder.load(pointer, align=1)
    return types.float32(types.int64), codegen


@intrinsic
def store_packed(typingctx, address, value):
    """Write a float32 to `address`, which need not be a multiple of 4."""
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        builder.store(args[1], pointer, align=1)
        return context.get_dummy_value()
    return types.void(types.int64, types.float32), codegen


@intrinsic
def prefetch(typingctx, address):
    """Start loading the cache line at `address`, which need not be memory of ours."""
    def codegen(context, builder, signature, args):
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag]),
            "llvm.prefetch.p0")
        read, keep, data = flag(0), flag(3), flag(1)
        builder.call(function, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()
    return types.void(types.int64), codegen


@intrinsic
def stack_lanes(typingctx):
    """Address of LANES float64 on the stack, valid until the caller returns."""
    def codegen(context, builder, signature, args):
        array = cgutils.alloca_once(builder, ir.ArrayType(ir.DoubleType(), LANES))
        return builder.ptrtoint(array, ir.IntType(64))
    return types.int64(), codegen


@intrinsic
def _half_to_float(typingctx, bits):
    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
    return types.float32(types.uint16), codegen


@intrinsic
def _float_to_half(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
    return types.uint16(types.float32), codegen


@intrinsic
def float_bits(typingctx, value):
    """The bit pattern of a float32."""
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))
    return types.uint32(types.float32), codegen


@intrinsic
def bits_float(typingctx, bits):
    """The float32 with this bit pattern."""
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())
    return types.float32(types.uint32), codegen


@njit(inline="always")
def from_float16(bits):
    return _half_to_float(bits)


@njit(inline="always")
def to_float16(value):
    return _float_to_half(np.float32(value))


@njit(inline="always")
def from_bfloat16(bits):
    return bits_float(np.uint32(np.uint32(bits) << np.uint32(16)))


@njit(inline="always")
def to_bfloat16(value):
    value = np.float32(value)
    bits = float_bits(value)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = np.uint32(bits | np.uint32(0x00400000))  # rounding up could turn a NaN into an Inf
    return np.uint16((rounded if value == value else quiet) >> np.uint32(16))
