"""Acquire loads and release stores of 64-bit counters in shared memory.

What a thread wrote before `store_release` is visible to the one whose `load_acquire` reads that
value, on x86 and on ARM alike.  Addresses are integers and 8-byte aligned.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


@intrinsic
def load_acquire(typingctx, address):
    """The counter at `address`."""
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)
    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Write the counter at `address`."""
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        builder.store_atomic(args[1], pointer, ordering="release", align=8)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), codegen
