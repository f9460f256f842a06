"""The host executor: one compiled loop over a plan's rows, the GIL released.

`depth` blocks are in flight.  Each walks the rows on its own: it posts receives as far ahead as
the plan's hazards allow, executes rows in order until one must wait, and hands over to the next
block.  A finished block is followed by block + depth.  Blocks are independent runs of a verified
schedule with tags of their own, so they cannot deadlock each other; messages of one block between
two ranks match in row order.

The loop returns when all blocks are done, when an MPI call failed, or when it has waited for
`budget` seconds without progress, so that Python can look at signals, stalls and timeouts; it is
then called again with the same state.

Waiting.  A rank spins for `spin` rounds over its blocks, then yields its core after each round
for about a millisecond, then sleeps, doubling up to MAX_SLEEP_US.  On 2 cores, a rank that
waits 1 s for a late peer burns 3 % of a core, against 100 % in MPI_Allreduce of either library.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from collectives import mpi_abi as mpi
from collectives.kernels import compile as compiler
from collectives.plan import (
    A,
    A_OFFSET,
    AFTER,
    COUNT,
    DST,
    DST_OFFSET,
    KERNEL,
    NBYTES,
    PEER,
    SENDS,
    SLOT,
    SWAP,
    VERB,
    Buffer,
    Verb,
)

# What `advance` returns.
DONE, PENDING, FAILED = 0, 1, -1

# Columns of `state`, one row per block in flight.
BLOCK, PC, POSTED, SENT, SENDS_DONE, VARIANT = range(6)
# Entries of `report`: where it failed, and what is waited for.
FAIL_ROW, FAIL_CODE, FAIL_GOT, WAIT_ROW = range(4)
WRONG_LENGTH = -2  # FAIL_CODE when a message was shorter than the row says

MAX_SLEEP_US = 500
YIELDS = 200

_SEND, _RECV, _REDUCE, _COPY = Verb.SEND.value, Verb.RECV.value, Verb.REDUCE.value, Verb.COPY.value
_LAND = Buffer.LAND.value

_FREE, _POSTED, _ARRIVED = 0, 1, 2  # what `flags` says of a row's message


@intrinsic
def _call_kernel(typingctx, address, dst, a, b, n, divisor):
    """Call the C function void(intp, intp, intp, int64, int64) at an integer address."""
    signature = types.void(types.int64, types.int64, types.int64, types.int64, types.int64,
                           types.int64)

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 5).as_pointer()
        builder.call(builder.inttoptr(args[0], function), args[1:])
        return context.get_dummy_value()

    return signature, codegen


@njit(inline="always")
def _address(bases, stride, scratch, k, block, buffer, offset):
    return bases[buffer] + stride[buffer] * block + scratch[buffer] * k + offset


@njit(inline="always")
def _arrived(k, n, flags, requests, io, nbytes, byte, report):
    """1 when row n's message is complete, 0 when not, -1 on an error."""
    if flags[k, n] == _ARRIVED:
        return 1
    code = mpi.test(requests + (k * flags.shape[1] + n) * mpi.REQUEST_NBYTES, io, io + 8)
    if code != mpi.SUCCESS:
        return _fail(report, n, code, 0)
    if _int32_at(io) == 0:
        return 0
    flags[k, n] = _ARRIVED
    return 1


@njit(inline="always")
def _fail(report, n, code, got):
    report[FAIL_ROW], report[FAIL_CODE], report[FAIL_GOT] = n, code, got
    return -1


@intrinsic
def _int32_at(typingctx, address):
    """The int32 that MPI wrote at `address`; volatile, since the compiler cannot see the write."""
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        return builder.load(pointer)
    return types.int32(types.int64), codegen


@njit
def _post(k, rows, extents, bases, stride, scratch, slot_nbytes, state, flags, requests, comm,
          byte, tag, report):
    """Post receives ahead, in row order, as far as hazards allow."""
    block, variant = state[k, BLOCK], state[k, VARIANT]
    n = state[k, POSTED]
    while n < rows.shape[0]:
        verb, nbytes = rows[n, VERB], extents[variant, n, NBYTES]
        if (verb == _RECV or verb == _REDUCE) and nbytes > 0:
            if rows[n, AFTER] >= state[k, PC]:
                break
            if verb == _RECV:
                if rows[n, SENDS] > state[k, SENDS_DONE]:
                    break
                where = _address(bases, stride, scratch, k, block, rows[n, DST],
                                 extents[variant, n, DST_OFFSET])
            else:
                where = _address(bases, stride, scratch, k, block, _LAND,
                                 rows[n, SLOT] * slot_nbytes)
            request = requests + (k * rows.shape[0] + n) * mpi.REQUEST_NBYTES
            code = mpi.irecv(where, nbytes, rows[n, PEER], tag + k, byte, comm, request)
            if code != mpi.SUCCESS:
                return _fail(report, n, code, 0)
            flags[k, n] = _POSTED
        n += 1
    state[k, POSTED] = n
    return 0


@njit
def _progress_sends(k, rows, extents, state, flags, requests, io, byte, report):
    """Count the sends, in row order, that are complete."""
    variant, n = state[k, VARIANT], state[k, SENT]
    while n < state[k, PC]:
        if rows[n, VERB] == _SEND:
            if extents[variant, n, NBYTES] > 0:
                got = _arrived(k, n, flags, requests, io, 0, byte, report)
                if got <= 0:
                    state[k, SENT] = n
                    return got
            state[k, SENDS_DONE] += 1
        n += 1
    state[k, SENT] = n
    return 1


@njit
def _execute(k, rows, extents, kernels, bases, stride, scratch, slot_nbytes, state, flags,
             requests, io, comm, byte, tag, divisor, report):
    """Execute the row at PC.  1: done, 0: must wait, -1: failed."""
    block, variant, n = state[k, BLOCK], state[k, VARIANT], state[k, PC]
    verb, nbytes = rows[n, VERB], extents[variant, n, NBYTES]
    if nbytes == 0:
        return 1
    if verb == _RECV or verb == _REDUCE:
        if flags[k, n] == _FREE:
            return 0
        fresh = flags[k, n] == _POSTED
        got = _arrived(k, n, flags, requests, io, nbytes, byte, report)
        if got <= 0:
            return got
        if fresh:
            code = mpi.get_count(io + 8, byte, io)
            if code != mpi.SUCCESS:
                return _fail(report, n, code, 0)
            if _int32_at(io) != nbytes:
                return _fail(report, n, WRONG_LENGTH, _int32_at(io))
        if verb == _RECV:
            return 1
    if verb != _SEND and rows[n, SENDS] > state[k, SENDS_DONE]:
        return 0
    a = _address(bases, stride, scratch, k, block, rows[n, A], extents[variant, n, A_OFFSET])
    if verb == _SEND:
        request = requests + (k * rows.shape[0] + n) * mpi.REQUEST_NBYTES
        code = mpi.isend(a, nbytes, rows[n, PEER], tag + k, byte, comm, request)
        if code != mpi.SUCCESS:
            return _fail(report, n, code, 0)
        flags[k, n] = _POSTED
        return 1
    dst = _address(bases, stride, scratch, k, block, rows[n, DST], extents[variant, n, DST_OFFSET])
    if verb == _COPY:
        mpi.memcpy(dst, a, nbytes)
        return 1
    b = _address(bases, stride, scratch, k, block, _LAND, rows[n, SLOT] * slot_nbytes)
    if rows[n, SWAP]:
        a, b = b, a
    _call_kernel(kernels[rows[n, KERNEL]], dst, a, b, extents[variant, n, COUNT], divisor)
    return 1


@njit
def _next_block(k, first_block, state, flags, block):
    """Start `block`, or retire this place if there is none."""
    last = first_block[first_block.size - 1]
    if block >= last:
        state[k, BLOCK] = -1
        return
    variant = state[k, VARIANT]
    while block >= first_block[variant + 1]:
        variant += 1
    state[k, VARIANT] = variant
    state[k, BLOCK] = block
    state[k, PC] = state[k, POSTED] = state[k, SENT] = state[k, SENDS_DONE] = 0
    flags[k, :] = _FREE


@njit
def start(first_block, state, flags):
    """Begin: block k in place k."""
    for k in range(state.shape[0]):
        state[k, VARIANT] = 0
        _next_block(k, first_block, state, flags, k)


@njit
def _advance(rows, extents, first_block, kernels, bases, stride, scratch, state, flags, requests,
             io, report, handles, spin, budget):
    """Run until done, failed, or idle for `budget` seconds."""
    comm, byte, tag, divisor, slot_nbytes = (handles[0], handles[1], handles[2], handles[3],
                                             handles[4])
    depth, length = state.shape[0], rows.shape[0]
    idle, sleep, since = 0, 1, -1.0
    while True:
        moved, alive = False, False
        for k in range(depth):
            if state[k, BLOCK] < 0:
                continue
            alive = True
            while True:
                if state[k, POSTED] < length and _post(
                        k, rows, extents, bases, stride, scratch, slot_nbytes, state, flags,
                        requests, comm, byte, tag, report) < 0:
                    return FAILED
                if state[k, SENT] < state[k, PC] and _progress_sends(
                        k, rows, extents, state, flags, requests, io, byte, report) < 0:
                    return FAILED
                if state[k, PC] == length:
                    if state[k, SENT] < length:
                        break
                    _next_block(k, first_block, state, flags, state[k, BLOCK] + depth)
                    moved = True
                    break
                got = _execute(k, rows, extents, kernels, bases, stride, scratch, slot_nbytes,
                               state, flags, requests, io, comm, byte, tag, divisor, report)
                if got < 0:
                    return FAILED
                if got == 0:
                    report[WAIT_ROW] = state[k, PC]
                    break
                state[k, PC] += 1
                moved = True
        if not alive:
            return DONE
        if moved:
            idle, sleep, since = 0, 1, -1.0
            continue
        idle += 1
        if idle < spin:
            continue
        now = mpi.wtime()
        if since < 0.0:
            since = now
        if now - since > budget:
            return PENDING
        if idle < spin + YIELDS:
            mpi.sched_yield()
        else:
            mpi.usleep(sleep)
            sleep = min(2 * sleep, MAX_SLEEP_US)


_VECTOR, _MATRIX = types.int64[::1], types.int64[:, ::1]
_STATE = types.uint8[:, ::1]
_ADVANCE = types.int64(
    _MATRIX, types.int64[:, :, ::1], _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _MATRIX, _STATE,
    types.int64, types.int64, _VECTOR, _VECTOR, types.int64, types.float64)
_START = types.void(_VECTOR, _MATRIX, _STATE)


def compiled_advance():
    """The loop, compiled or loaded from the cache."""
    return compiler.function(_advance.py_func, _ADVANCE, environment=mpi.library())


def compiled_start():
    """The initialiser, compiled or loaded from the cache."""
    return compiler.function(start.py_func, _START, environment=mpi.library())
