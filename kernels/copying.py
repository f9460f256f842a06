"""Copy memory that another core has just written.

The C library's memcpy is made for memory of one's own.  From about 2 KB on it uses `rep movsb`
where processors have it, and on AMD EPYC that is slow if the source is in another core's cache:
copying 512 KB in pieces of 32 to 128 KB out of a peer's slot took 185 us, this loop of plain
vector moves 25 us.  (Non-temporal stores: 65 us, since the target is in the cache as well.)
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

VECTOR_NBYTES = 64
_SHORT = 256  # bytes below which the C library's is as good

_memcpy = types.ExternalFunction(
    "memcpy", types.intp(types.intp, types.intp, types.uintp))


@intrinsic
def _move(typingctx, dst, src):
    """Copy VECTOR_NBYTES bytes; the addresses may be odd."""
    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(64), VECTOR_NBYTES // 8).as_pointer()
        moved = builder.load(builder.inttoptr(args[1], vector), align=1)
        builder.store(moved, builder.inttoptr(args[0], vector), align=1)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), codegen


@njit
def copy(dst, src, nbytes):
    """Copy `nbytes` from address `src` to `dst`; they do not overlap, or are the same."""
    if nbytes < _SHORT:
        _memcpy(dst, src, np.uint64(nbytes))
        return
    # Moves to the ends, wherever those are; between them, to lines of the cache.
    end = nbytes - VECTOR_NBYTES
    _move(dst, src)
    at = VECTOR_NBYTES - dst % VECTOR_NBYTES
    while at < end - 3 * VECTOR_NBYTES:
        _move(dst + at, src + at)
        _move(dst + at + VECTOR_NBYTES, src + at + VECTOR_NBYTES)
        _move(dst + at + 2 * VECTOR_NBYTES, src + at + 2 * VECTOR_NBYTES)
        _move(dst + at + 3 * VECTOR_NBYTES, src + at + 3 * VECTOR_NBYTES)
        at += 4 * VECTOR_NBYTES
    while at < end:
        _move(dst + at, src + at)
        at += VECTOR_NBYTES
    _move(dst + end, src + end)
