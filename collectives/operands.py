"""The operands of a row in memory, and the kernels that combine them: compiled code.

In all functions k is the place of the block in flight, n the row, f the `Frame`.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from collectives.frame import BLOCK, CODED, DIVISOR, SEED, SLOT_NBYTES, VARIANT
from collectives.plan import (
    A_OFFSET,
    COUNT,
    DST,
    DST_OFFSET,
    KERNEL,
    NBYTES,
    RESIDUAL_OFFSET,
    SLOT,
    SWAP,
    WIRE_OFFSET,
    A,
    Buffer,
)

_LAND, _WIRE, _RESIDUAL = Buffer.LAND.value, Buffer.WIRE.value, Buffer.RESIDUAL.value
_ODD = np.int64(0x632BE59BD9B4E019)  # far from any small multiple of itself, modulo 2**64


@intrinsic
def call_kernel(typingctx, address, dst, a, b, n, divisor):
    """Call the C function void(intp, intp, intp, int64, int64) at an integer address."""
    signature = types.void(*[types.int64] * 6)

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 5).as_pointer()
        builder.call(builder.inttoptr(args[0], function), args[1:])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _call_codec_kernel(typingctx, address, dst, a, incoming, residual, wire, n, divisor, seed,
                       parameter):
    """Call a kernel of `kernels.fused` at an integer address."""
    signature = types.void(*[types.int64] * 9, types.float64)

    def codegen(context, builder, signature, args):
        kinds = [ir.IntType(64)] * 8 + [ir.DoubleType()]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(args[0], function), args[1:])
        return context.get_dummy_value()

    return signature, codegen


@njit(inline="always")
def nbytes_of(k, n, f):
    """Bytes of the row in this place's block; of a message of variable length, its capacity."""
    return f.extents[f.state[k, VARIANT], n, NBYTES]


@njit(inline="always")
def _address(k, buffer, offset, f):
    return (f.bases[buffer] + f.stride[buffer] * f.state[k, BLOCK] + f.scratch[buffer] * k
            + offset)


@njit(inline="always")
def source_of(k, n, f):
    """Address of the row's operand."""
    return _address(k, f.rows[n, A], f.extents[f.state[k, VARIANT], n, A_OFFSET], f)


@njit(inline="always")
def target_of(k, n, f):
    """Address of what the row writes."""
    return _address(k, f.rows[n, DST], f.extents[f.state[k, VARIANT], n, DST_OFFSET], f)


@njit(inline="always")
def landing_of(k, n, f):
    """Address of the row's landing slot."""
    return _address(k, _LAND, f.rows[n, SLOT] * f.handles[SLOT_NBYTES], f)


@njit(inline="always")
def combine_part(n, dst, own, incoming, count, f):
    """dst = own op incoming, the lower rank's value first."""
    first, second = (incoming, own) if f.rows[n, SWAP] else (own, incoming)
    call_kernel(f.kernels[f.rows[n, KERNEL]], dst, first, second, count, f.handles[DIVISOR])


@njit
def encode(k, n, incoming, f):
    """Run row n's codec kernel; `incoming` is a wire, or 0."""
    count = f.extents[f.state[k, VARIANT], n, COUNT]
    dst = target_of(k, n, f) if f.rows[n, DST] >= 0 else 0
    own = source_of(k, n, f) if f.rows[n, A] >= 0 else 0
    wire = _address(k, _WIRE, f.extents[f.state[k, VARIANT], n, WIRE_OFFSET], f)
    residual = _address(k, _RESIDUAL, f.extents[f.state[k, VARIANT], n, RESIDUAL_OFFSET], f)
    # A seed of its own for every row of every block.
    seed = f.handles[SEED] + _ODD * (f.state[k, BLOCK] * f.rows.shape[0] + n + 1)
    _call_codec_kernel(f.kernels[f.rows[n, KERNEL]], dst, own, incoming, residual, wire, count,
                       f.handles[DIVISOR], seed, f.parameter)


@njit
def combine(k, n, incoming, f):
    """Reduce row n's message, all of it, at address `incoming`."""
    if f.handles[CODED]:
        encode(k, n, incoming, f)
    else:
        combine_part(n, target_of(k, n, f), source_of(k, n, f), incoming,
                      f.extents[f.state[k, VARIANT], n, COUNT], f)
