"""Device memory by address, and bit patterns, as single instructions.

Addresses are integers, as in the host kernels, so that host and device kernels have one signature.
Pointers are made in the global address space (1): accesses then are `ld.global` and `st.global`.
Elements must be aligned to their size; only `kernels.cuda_memory.load_float_unaligned` may not be.
"""

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

GLOBAL = 1  # NVVM's number of the address space


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
    pointer = context.data_model_manager[element].get_data_type().as_pointer(GLOBAL)
    return builder.gep(builder.inttoptr(address, pointer), [index])


def _bitcast(source, target, llvm_type):
    @intrinsic
    def cast(typingctx, value):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], llvm_type)
        return target(source), codegen
    return cast


float_bits = _bitcast(types.float32, types.uint32, ir.IntType(32))
bits_float = _bitcast(types.uint32, types.float32, ir.FloatType())
double_bits = _bitcast(types.float64, types.uint64, ir.IntType(64))


@intrinsic
def half_to_float(typingctx, bits):
    """The float32 that equals the IEEE half with these bits."""
    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
    return types.float32(types.uint16), codegen


@intrinsic
def float_to_half(typingctx, value):
    """Bits of the IEEE half nearest to a float32, ties to even; Inf above its range."""
    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
    return types.uint16(types.float32), codegen
