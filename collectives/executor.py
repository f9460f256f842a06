"""The host executor: one compiled loop over a plan's rows, the GIL released.

`depth` blocks are in flight.  Each walks the rows on its own: it posts receives as far ahead as
the plan's hazards allow, executes rows in order until one must wait, and hands over to the next
block.  A finished block is followed by block + depth.  Blocks are independent runs of a verified
schedule with tags and mailboxes of their own, so they cannot deadlock each other; messages of one
block between two ranks match in row order.

A SEND row never blocks: it posts a request to MPI, or a message to a mailbox as soon as there is
room.  Its data may not change before it is complete, which the plan's `sends` column sees to on
both channels.

The loop returns when all blocks are done, when an MPI call failed, or when it has waited for
`budget` seconds without progress, so that Python can look at signals, stalls and timeouts; it is
then called again with the same state.

Waiting.  A rank spins for `spin` rounds over its blocks, then yields its core after each round
YIELDS times, then sleeps, doubling up to MAX_SLEEP_US.
"""

from functools import lru_cache

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from collectives import mailbox
from collectives import mpi_abi as mpi
from collectives.blocks import MAX_DEPTH
from collectives.kernels import compile as compiler
from collectives.kernels.scalars import load
from collectives.plan import (
    A_OFFSET,
    A_SIZE,
    AFTER,
    BOX,
    CHANNEL,
    COUNT,
    DST,
    DST_OFFSET,
    DST_SIZE,
    KERNEL,
    NBYTES,
    PEER,
    SENDS,
    SLOT,
    SWAP,
    VERB,
    WIRE_SIZE,
    A,
    Buffer,
    Channel,
    Verb,
)

# What `advance` returns.
DONE, PENDING, FAILED = 0, 1, -1

# Columns of `state`, one row per block in flight.
BLOCK, PC, POSTED, SENT, SENDS_DONE, VARIANT = range(6)
# Entries of `report`: where it failed, and what is waited for.
FAIL_ROW, FAIL_CODE, FAIL_GOT, WAIT_ROW = range(4)
# FAIL_CODE of failures that are not MPI's: a message is not as long as the row says, or a peer's
# memory could not be read.
WRONG_LENGTH, READ_FAILED = -2, -3
# Entries of `handles`.
COMM, BYTE, TAG, DIVISOR, SLOT_NBYTES = range(5)

MAX_SLEEP_US = 500
YIELDS = 200

_SEND, _RECV, _REDUCE, _COPY = Verb.SEND.value, Verb.RECV.value, Verb.REDUCE.value, Verb.COPY.value
_LAND, _SHARED = Buffer.LAND.value, Channel.SHARED.value

_FREE, _POSTED, _COMPLETE = 0, 1, 2  # what `flags` says of a row's message
_FAIL, _WAIT, _DONE, _MOVED = -1, 0, 1, 2  # what a row does: _MOVED is some way, and waits


@intrinsic
def _call_kernel(typingctx, address, dst, a, b, n, divisor):
    """Call the C function void(intp, intp, intp, int64, int64) at an integer address."""
    signature = types.void(*[types.int64] * 6)

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 5).as_pointer()
        builder.call(builder.inttoptr(args[0], function), args[1:])
        return context.get_dummy_value()

    return signature, codegen


@njit(inline="always")
def _fail(report, n, code, got):
    report[FAIL_ROW], report[FAIL_CODE], report[FAIL_GOT] = n, code, got
    return _FAIL


@njit(inline="always")
def _address(bases, stride, scratch, k, block, buffer, offset):
    return bases[buffer] + stride[buffer] * block + scratch[buffer] * k + offset


@njit(inline="always")
def _request(requests, k, n, length):
    return requests + (k * length + n) * mpi.REQUEST_NBYTES


@njit
def _test(k, n, flags, requests, io, report):
    """Whether row n's MPI message is complete."""
    code = mpi.test(_request(requests, k, n, flags.shape[1]), io, io + 8)
    if code != mpi.SUCCESS:
        return _fail(report, n, code, 0)
    if load(io, 0, np.int32) == 0:
        return _WAIT
    flags[k, n] = _COMPLETE
    return _DONE


@njit
def _post(k, rows, extents, bases, stride, scratch, state, flags, requests, handles, report):
    """Post MPI receives ahead, in row order, as far as hazards allow."""
    block, variant, n = state[k, BLOCK], state[k, VARIANT], state[k, POSTED]
    while n < rows.shape[0]:
        verb, nbytes = rows[n, VERB], extents[variant, n, NBYTES]
        if verb in (_RECV, _REDUCE) and nbytes > 0 and rows[n, CHANNEL] != _SHARED:
            if rows[n, AFTER] >= state[k, PC]:
                break
            if verb == _RECV:
                if rows[n, SENDS] > state[k, SENDS_DONE]:
                    break
                where = _address(bases, stride, scratch, k, block, rows[n, DST],
                                 extents[variant, n, DST_OFFSET])
            else:
                where = _address(bases, stride, scratch, k, block, _LAND,
                                 rows[n, SLOT] * handles[SLOT_NBYTES])
            code = mpi.irecv(where, nbytes, rows[n, PEER], handles[TAG] + k, handles[BYTE],
                             handles[COMM], _request(requests, k, n, rows.shape[0]))
            if code != mpi.SUCCESS:
                return _fail(report, n, code, 0)
            flags[k, n] = _POSTED
        n += 1
    state[k, POSTED] = n
    return _DONE


@njit
def _send_shared(k, n, nbytes, a, rows, state, flags, progress, layout):
    """Put a message into its mailbox, or see whether it has been read there.

    `progress` of a send is 0 until it is in the mailbox, then its number there plus one.
    """
    head = mailbox.header(layout, rows[n, BOX] * MAX_DEPTH + k)
    if progress[k, n] > 0:
        if mailbox.unread(head, progress[k, n] - 1, nbytes) > 0:
            return _WAIT
    else:
        if _behind(k, n, rows, state, flags, progress) or not mailbox.has_room(head):
            return _WAIT
        number = mailbox.written(head)
        progress[k, n] = number + 1
        if nbytes > layout[mailbox.EAGER]:
            mailbox.publish(head, nbytes, a)
            return _MOVED
        cell = mailbox.slot(layout, rows[n, BOX] * MAX_DEPTH + k, number)
        mpi.memcpy(cell, a, nbytes)
        mailbox.publish(head, nbytes, 0)
    flags[k, n] = _COMPLETE
    return _DONE


@njit
def _behind(k, n, rows, state, flags, progress):
    """True if an earlier message to the same mailbox is not yet in it."""
    for m in range(state[k, SENT], n):
        if (rows[m, VERB] == _SEND and rows[m, BOX] == rows[n, BOX] and flags[k, m] == _POSTED
                and progress[k, m] == 0):
            return True
    return False


@njit
def _clear(k, n, nbytes, dst, rows, extents, bases, stride, scratch, state, flags, progress,
           layout):
    """How many bytes of row n's message may be written to `dst`: what no send has yet to read.

    Two ranks that exchange a long message would wait for each other for ever if each waited until
    its own send is complete before it wrote what it received.
    """
    if rows[n, SENDS] <= state[k, SENDS_DONE]:
        return nbytes
    block, variant = state[k, BLOCK], state[k, VARIANT]
    count = nbytes // rows[n, WIRE_SIZE]
    for m in range(state[k, SENT], n):
        if rows[m, VERB] == _SEND and flags[k, m] == _POSTED:
            left = extents[variant, m, NBYTES]
            end = left + _address(bases, stride, scratch, k, block, rows[m, A],
                                  extents[variant, m, A_OFFSET])
            if progress[k, m] > 0:
                head = mailbox.header(layout, rows[m, BOX] * MAX_DEPTH + k)
                left = mailbox.unread(head, progress[k, m] - 1, left)
            if left > 0 and dst < end:
                count = min(count, max(0, end - left - dst) // rows[n, DST_SIZE])
    return count * rows[n, WIRE_SIZE]


@njit
def _take_short(k, n, nbytes, clear, a, dst, head, rows, kernels, layout, divisor):
    """Copy or reduce a message out of its slot."""
    if clear < nbytes:
        return _WAIT
    cell = mailbox.slot(layout, rows[n, BOX] * MAX_DEPTH + k, mailbox.read(head))
    if rows[n, VERB] == _RECV:
        mpi.memcpy(dst, cell, nbytes)
    else:
        _combine(n, dst, a, cell, nbytes // rows[n, WIRE_SIZE], rows, kernels, divisor)
    mailbox.release(head)
    return _DONE


@njit
def _take_long(k, n, nbytes, clear, a, dst, stage, head, rows, kernels, progress, io, layout,
               stage_nbytes, divisor, report):
    """Read a message from its sender's memory: straight to `dst`, or reduce it by way of `stage`.

    A piece counts as taken once it is read; it is reduced when `dst` may be written.
    """
    pid = layout[mailbox.PIDS + rows[n, BOX] // layout[mailbox.RANKS]]
    before = done = progress[k, n]
    whole = rows[n, VERB] == _RECV
    while done < nbytes:
        part = mailbox.taken(head) - done
        if part == 0:
            part = clear - done if whole else min(stage_nbytes, nbytes - done)
            if part <= 0:
                break
            if not mpi.read_memory(pid, dst + done if whole else stage,
                                   mailbox.address(head) + done, part, io):
                return _fail(report, n, READ_FAILED, done)
            mailbox.take(head, done + part)
        if done + part > clear:
            break
        if not whole:
            first = done // rows[n, WIRE_SIZE]
            _combine(n, dst + first * rows[n, DST_SIZE], a + first * rows[n, A_SIZE], stage,
                     part // rows[n, WIRE_SIZE], rows, kernels, divisor)
        done += part
    progress[k, n] = done
    if done == nbytes:
        mailbox.release(head)
        return _DONE
    return _MOVED if done > before else _WAIT


@njit(inline="always")
def _combine(n, dst, own, incoming, count, rows, kernels, divisor):
    first, second = (incoming, own) if rows[n, SWAP] else (own, incoming)
    _call_kernel(kernels[rows[n, KERNEL]], dst, first, second, count, divisor)


@njit
def _progress_sends(k, rows, extents, bases, stride, scratch, state, flags, progress, requests,
                    io, layout, report):
    """Move sends that are under way; count those, in row order, that are complete."""
    block, variant = state[k, BLOCK], state[k, VARIANT]
    moved, blocked = _WAIT, False
    for n in range(state[k, SENT], state[k, PC]):
        if rows[n, VERB] == _SEND and flags[k, n] == _POSTED:
            got = _WAIT
            if rows[n, CHANNEL] == _SHARED:
                a = _address(bases, stride, scratch, k, block, rows[n, A],
                             extents[variant, n, A_OFFSET])
                got = _send_shared(k, n, extents[variant, n, NBYTES], a, rows, state, flags,
                                   progress, layout)
            elif not blocked:
                got = _test(k, n, flags, requests, io, report)
            if got == _FAIL:
                return _FAIL
            if got != _WAIT:
                moved = _MOVED
        if rows[n, VERB] == _SEND and flags[k, n] == _POSTED:
            blocked = True
        elif not blocked:
            state[k, SENT] = n + 1
            state[k, SENDS_DONE] += rows[n, VERB] == _SEND
    return moved


@njit
def _receive(k, n, nbytes, flags, requests, io, handles, report):
    """Whether row n's MPI message has arrived, in full length."""
    if flags[k, n] == _FREE:
        return _WAIT
    if flags[k, n] == _COMPLETE:
        return _DONE
    got = _test(k, n, flags, requests, io, report)
    if got != _DONE:
        return got
    code = mpi.get_count(io + 8, handles[BYTE], io)
    if code != mpi.SUCCESS:
        return _fail(report, n, code, 0)
    if load(io, 0, np.int32) != nbytes:
        return _fail(report, n, WRONG_LENGTH, load(io, 0, np.int32))
    return _DONE


@njit
def _receive_shared(k, n, nbytes, a, dst, rows, extents, kernels, bases, stride, scratch, state,
                    flags, progress, io, handles, layout, report):
    """Take row n's message from its mailbox, as far as it is there and may be written."""
    head = mailbox.header(layout, rows[n, BOX] * MAX_DEPTH + k)
    if not mailbox.has_message(head):
        return _WAIT
    if mailbox.length(head) != nbytes:
        return _fail(report, n, WRONG_LENGTH, mailbox.length(head))
    clear = _clear(k, n, nbytes, dst, rows, extents, bases, stride, scratch, state, flags,
                   progress, layout)
    if nbytes <= layout[mailbox.EAGER]:
        return _take_short(k, n, nbytes, clear, a, dst, head, rows, kernels, layout,
                           handles[DIVISOR])
    stage = _address(bases, stride, scratch, k, 0, _LAND, rows[n, SLOT] * handles[SLOT_NBYTES])
    return _take_long(k, n, nbytes, clear, a, dst, stage, head, rows, kernels, progress, io,
                      layout, handles[SLOT_NBYTES], handles[DIVISOR], report)


@njit
def _execute(k, rows, extents, kernels, bases, stride, scratch, state, flags, progress, requests,
             io, handles, layout, report):
    """Execute the row at PC, or as much of it as is possible now."""
    block, variant, n = state[k, BLOCK], state[k, VARIANT], state[k, PC]
    verb, nbytes, shared = rows[n, VERB], extents[variant, n, NBYTES], rows[n, CHANNEL] == _SHARED
    if nbytes == 0:
        return _DONE
    if not shared and verb in (_RECV, _REDUCE):
        got = _receive(k, n, nbytes, flags, requests, io, handles, report)
        if got != _DONE or verb == _RECV:
            return got
    a = _address(bases, stride, scratch, k, block, rows[n, A], extents[variant, n, A_OFFSET])
    if verb == _SEND:
        flags[k, n] = _POSTED
        if shared:
            _send_shared(k, n, nbytes, a, rows, state, flags, progress, layout)
            return _DONE
        code = mpi.isend(a, nbytes, rows[n, PEER], handles[TAG] + k, handles[BYTE], handles[COMM],
                         _request(requests, k, n, rows.shape[0]))
        return _DONE if code == mpi.SUCCESS else _fail(report, n, code, 0)
    dst = _address(bases, stride, scratch, k, block, rows[n, DST], extents[variant, n, DST_OFFSET])
    if shared:
        return _receive_shared(k, n, nbytes, a, dst, rows, extents, kernels, bases, stride, scratch,
                               state, flags, progress, io, handles, layout, report)
    if rows[n, SENDS] > state[k, SENDS_DONE]:
        return _WAIT
    if verb == _COPY:
        mpi.memcpy(dst, a, nbytes)
    else:
        land = _address(bases, stride, scratch, k, block, _LAND,
                        rows[n, SLOT] * handles[SLOT_NBYTES])
        _combine(n, dst, a, land, extents[variant, n, COUNT], rows, kernels, handles[DIVISOR])
    return _DONE


@njit
def _next_block(k, first_block, state, flags, progress, block):
    """Start `block`, or retire this place if there is none."""
    if block >= first_block[first_block.size - 1]:
        state[k, BLOCK] = -1
        return
    variant = state[k, VARIANT]
    while block >= first_block[variant + 1]:
        variant += 1
    state[k, VARIANT] = variant
    state[k, BLOCK] = block
    state[k, PC] = state[k, POSTED] = state[k, SENT] = state[k, SENDS_DONE] = 0
    flags[k, :] = _FREE
    progress[k, :] = 0


@njit
def _visit(k, rows, extents, first_block, kernels, bases, stride, scratch, state, flags, progress,
           requests, io, report, handles, layout):
    """Take the block in place k as far as it goes."""
    moved, length = _WAIT, rows.shape[0]
    while True:
        if state[k, POSTED] < length and _post(
                k, rows, extents, bases, stride, scratch, state, flags, requests, handles,
                report) == _FAIL:
            return _FAIL
        if state[k, SENT] < state[k, PC]:
            got = _progress_sends(k, rows, extents, bases, stride, scratch, state, flags, progress,
                                  requests, io, layout, report)
            if got == _FAIL:
                return _FAIL
            moved = max(moved, got)
        if state[k, PC] == length:
            if state[k, SENT] == length:
                _next_block(k, first_block, state, flags, progress,
                            state[k, BLOCK] + state.shape[0])
                moved = _MOVED
            return moved
        got = _execute(k, rows, extents, kernels, bases, stride, scratch, state, flags, progress,
                       requests, io, handles, layout, report)
        if got == _FAIL:
            return _FAIL
        if got != _DONE:
            report[WAIT_ROW] = state[k, PC]
            return max(moved, got)
        state[k, PC] += 1
        moved = _MOVED


@njit
def _advance(rows, extents, first_block, kernels, bases, stride, scratch, state, flags, progress,
             requests, io, report, handles, layout, spin, budget, begin):
    """Run until done, failed, or idle for `budget` seconds; if `begin`, from the start."""
    if begin:
        for k in range(state.shape[0]):
            state[k, VARIANT] = 0
            _next_block(k, first_block, state, flags, progress, k)
    idle, sleep, since = 0, 1, -1.0
    while True:
        moved, alive = False, False
        for k in range(state.shape[0]):
            if state[k, BLOCK] >= 0:
                alive = True
                got = _visit(k, rows, extents, first_block, kernels, bases, stride, scratch, state,
                             flags, progress, requests, io, report, handles, layout)
                if got == _FAIL:
                    return FAILED
                moved = moved or got != _WAIT
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


_VECTOR, _MATRIX, _BYTES = types.int64[::1], types.int64[:, ::1], types.uint8[:, ::1]
_ADVANCE = types.int64(
    _MATRIX, types.int64[:, :, ::1], _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _MATRIX, _BYTES,
    _MATRIX, types.int64, types.int64, _VECTOR, _VECTOR, _VECTOR, types.int64, types.float64,
    types.boolean)


@lru_cache(maxsize=1)
def compiled():
    """`_advance`, compiled or loaded from the cache."""
    return compiler.function(_advance.py_func, _ADVANCE, environment=mpi.library())
