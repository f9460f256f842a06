"""How the message of a row travels: compiled code, by MPI or through a mailbox.

In all functions k is the place of the block in flight, n the row, f the `Frame`.

Hazards.  A row that writes waits for the sends that read what it writes.  By MPI it waits until
they are complete (the plan's `sends` column).  Through shared memory two ranks that exchange a long
message would so wait for each other for ever: each takes the other's message only when its own has
been taken.  There a receiver reads ahead into a stage, and writes as far as no send has yet to
read (`_clear`).

A wire is encoded or decoded whole, so where messages are wires all of it waits for those sends.
That cannot make two ranks wait for each other: a place that a wire is sent from is written again
only with what that wire led to, by way of its receiver.

`progress` of a send through a mailbox is 0 until it is there, then its number there plus one.
"""

import numpy as np
from numba import njit

from collectives import mailbox
from collectives import mpi_abi as mpi
from collectives.blocks import MAX_DEPTH
from collectives.frame import (
    BYTE,
    CODED,
    COMM,
    COMPLETE,
    DONE,
    FAIL,
    FAIL_CODE,
    FAIL_GOT,
    FAIL_ROW,
    FREE,
    MESSAGES,
    MOVED,
    PC,
    POSTED,
    READ_FAILED,
    SENDS_DONE,
    SENT,
    SENT_NBYTES,
    SLOT_NBYTES,
    TAG,
    UNDER_WAY,
    VARIABLE,
    WAIT,
    WRONG_LENGTH,
)
from collectives.kernels.copying import copy
from collectives.kernels.scalars import load
from collectives.operands import combine, combine_part, landing_of, nbytes_of, source_of, target_of
from collectives.plan import (
    A_SIZE,
    AFTER,
    BOX,
    CHANNEL,
    DST_SIZE,
    PEER,
    SENDS,
    VERB,
    WIRE_SIZE,
    Channel,
    Verb,
)

_SEND, _RECV, _REDUCE = Verb.SEND.value, Verb.RECV.value, Verb.REDUCE.value
_SHARED = Channel.SHARED.value


@njit(inline="always")
def _sent_nbytes(k, n, f):
    """Bytes of the message that row n sends."""
    if f.handles[VARIABLE]:
        return load(source_of(k, n, f), 0, np.int64)
    return nbytes_of(k, n, f)


@njit(inline="always")
def _fits(got, nbytes, where, f):
    """Whether a message of `got` bytes, at address `where`, is what a row of `nbytes` expects."""
    if f.handles[VARIABLE]:
        return 8 <= got <= nbytes and got == load(where, 0, np.int64)
    return got == nbytes


@njit(inline="always")
def _request(k, n, f):
    return f.requests + (k * f.rows.shape[0] + n) * mpi.REQUEST_NBYTES


@njit(inline="always")
def _head(k, n, f):
    return mailbox.header(f.layout, f.rows[n, BOX] * MAX_DEPTH + k)


@njit(inline="always")
def _fail(n, code, got, f):
    f.report[FAIL_ROW], f.report[FAIL_CODE], f.report[FAIL_GOT] = n, code, got
    return FAIL


@njit
def post_receives(k, f):
    """Post MPI receives ahead, in row order, as far as hazards allow."""
    n = f.state[k, POSTED]
    while n < f.rows.shape[0]:
        verb, nbytes = f.rows[n, VERB], nbytes_of(k, n, f)
        if verb in (_RECV, _REDUCE) and nbytes > 0 and f.rows[n, CHANNEL] != _SHARED:
            if f.rows[n, AFTER] >= f.state[k, PC]:
                break
            if verb == _RECV and f.rows[n, SENDS] > f.state[k, SENDS_DONE]:
                break
            where = target_of(k, n, f) if verb == _RECV else landing_of(k, n, f)
            code = mpi.irecv(where, nbytes, f.rows[n, PEER], f.handles[TAG] + k, f.handles[BYTE],
                             f.handles[COMM], _request(k, n, f))
            if code != mpi.SUCCESS:
                return _fail(n, code, 0, f)
            f.flags[k, n] = UNDER_WAY
        n += 1
    f.state[k, POSTED] = n
    return DONE


@njit
def _test(k, n, f):
    """Whether row n's MPI message is complete."""
    code = mpi.test(_request(k, n, f), f.io, f.io + 8)
    if code != mpi.SUCCESS:
        return _fail(n, code, 0, f)
    if load(f.io, 0, np.int32) == 0:
        return WAIT
    f.flags[k, n] = COMPLETE
    return DONE


@njit
def receive_by_mpi(k, n, nbytes, f):
    """Whether row n's message has arrived, in full length."""
    if f.flags[k, n] != UNDER_WAY:
        return WAIT if f.flags[k, n] == FREE else DONE
    got = _test(k, n, f)
    if got != DONE:
        return got
    code = mpi.get_count(f.io + 8, f.handles[BYTE], f.io)
    if code != mpi.SUCCESS:
        return _fail(n, code, 0, f)
    got = np.int64(load(f.io, 0, np.int32))
    where = target_of(k, n, f) if f.rows[n, VERB] == _RECV else landing_of(k, n, f)
    return DONE if _fits(got, nbytes, where, f) else _fail(n, WRONG_LENGTH, got, f)


@njit
def send(k, n, f):
    """Start row n's message."""
    f.flags[k, n] = UNDER_WAY
    nbytes = _sent_nbytes(k, n, f)
    f.counters[MESSAGES] += 1
    f.counters[SENT_NBYTES] += nbytes
    if f.rows[n, CHANNEL] == _SHARED:
        _move_send(k, n, f)
        return DONE
    code = mpi.isend(source_of(k, n, f), nbytes, f.rows[n, PEER], f.handles[TAG] + k,
                     f.handles[BYTE], f.handles[COMM], _request(k, n, f))
    return DONE if code == mpi.SUCCESS else _fail(n, code, 0, f)


@njit
def _move_send(k, n, f):
    """Put a message into its mailbox, or see whether it has been read there."""
    head, nbytes = _head(k, n, f), _sent_nbytes(k, n, f)
    if f.progress[k, n] > 0:
        if mailbox.unread(head, f.progress[k, n] - 1, nbytes) > 0:
            return WAIT
    else:
        if _behind(k, n, f) or not mailbox.has_room(head):
            return WAIT
        number = mailbox.written(head)
        f.progress[k, n] = number + 1
        if nbytes > f.layout[mailbox.EAGER]:
            mailbox.publish(head, nbytes, source_of(k, n, f))
            return MOVED
        cell = mailbox.slot(f.layout, f.rows[n, BOX] * MAX_DEPTH + k, number)
        copy(cell, source_of(k, n, f), nbytes)
        mailbox.publish(head, nbytes, 0)
    f.flags[k, n] = COMPLETE
    return DONE


@njit
def _behind(k, n, f):
    """True if an earlier message to the same mailbox is not yet in it."""
    for m in range(f.state[k, SENT], n):
        if (f.rows[m, VERB] == _SEND and f.rows[m, BOX] == f.rows[n, BOX]
                and f.flags[k, m] == UNDER_WAY and f.progress[k, m] == 0):
            return True
    return False


@njit
def progress_sends(k, f):
    """Move sends that are under way; count those, in row order, that are complete."""
    moved, blocked = WAIT, False
    for n in range(f.state[k, SENT], f.state[k, PC]):
        is_send = f.rows[n, VERB] == _SEND
        if is_send and f.flags[k, n] == UNDER_WAY:
            got = WAIT
            if f.rows[n, CHANNEL] == _SHARED:
                got = _move_send(k, n, f)
            elif not blocked:
                got = _test(k, n, f)
            if got == FAIL:
                return FAIL
            if got != WAIT:
                moved = MOVED
        if is_send and f.flags[k, n] == UNDER_WAY:
            blocked = True
        elif not blocked:
            f.state[k, SENT] = n + 1
            f.state[k, SENDS_DONE] += is_send
    return moved


@njit
def _clear(k, n, nbytes, f):
    """How many bytes of row n's message may be written: what no send has yet to read."""
    if f.rows[n, SENDS] <= f.state[k, SENDS_DONE]:
        return nbytes
    if f.handles[CODED]:
        return 0
    dst, count = target_of(k, n, f), nbytes // f.rows[n, WIRE_SIZE]
    for m in range(f.state[k, SENT], n):
        if f.rows[m, VERB] == _SEND and f.flags[k, m] == UNDER_WAY:
            left = nbytes_of(k, m, f)
            end = source_of(k, m, f) + left
            if f.progress[k, m] > 0:
                left = mailbox.unread(_head(k, m, f), f.progress[k, m] - 1, left)
            if left > 0 and dst < end:
                count = min(count, max(0, end - left - dst) // f.rows[n, DST_SIZE])
    return count * f.rows[n, WIRE_SIZE]


@njit
def receive_shared(k, n, nbytes, f):
    """Take row n's message from its mailbox, as far as it is there and may be written."""
    head = _head(k, n, f)
    if not mailbox.has_message(head):
        return WAIT
    got = mailbox.length(head)
    if got != nbytes and not (f.handles[VARIABLE] and 8 <= got <= nbytes):
        return _fail(n, WRONG_LENGTH, got, f)
    nbytes = got
    clear = _clear(k, n, nbytes, f)
    if nbytes > f.layout[mailbox.EAGER]:
        return _take_long(k, n, nbytes, clear, head, f)
    return _take_short(k, n, nbytes, clear, head, f)


@njit
def _take_short(k, n, nbytes, clear, head, f):
    """Copy or reduce a message out of its slot."""
    if clear < nbytes:
        return WAIT
    cell = mailbox.slot(f.layout, f.rows[n, BOX] * MAX_DEPTH + k, mailbox.read(head))
    if f.rows[n, VERB] == _RECV:
        copy(target_of(k, n, f), cell, nbytes)
    else:
        combine(k, n, cell, f)
    mailbox.release(head)
    return DONE


@njit
def _take_long(k, n, nbytes, clear, head, f):
    """Read a message from its sender's memory: straight to its target, or reduce it by way of a
    stage.  A piece counts as taken once it is read; it is reduced when the target may be written.
    """
    pid = f.layout[mailbox.PIDS + f.rows[n, BOX] // f.layout[mailbox.RANKS]]
    dst, stage = target_of(k, n, f), landing_of(k, n, f)
    before = done = f.progress[k, n]
    straight = f.rows[n, VERB] == _RECV
    while done < nbytes:
        part = mailbox.taken(head) - done
        if part == 0:
            part = clear - done if straight else min(f.handles[SLOT_NBYTES], nbytes - done)
            if part <= 0:
                break
            if not mpi.read_memory(pid, dst + done if straight else stage,
                                   mailbox.address(head) + done, part, f.io):
                return _fail(n, READ_FAILED, done, f)
            mailbox.take(head, done + part)
        if done + part > clear:
            break
        if f.handles[CODED] and not straight:
            combine(k, n, stage, f)
        elif not straight:
            first = done // f.rows[n, WIRE_SIZE]
            combine_part(n, dst + first * f.rows[n, DST_SIZE],
                         source_of(k, n, f) + first * f.rows[n, A_SIZE], stage,
                         part // f.rows[n, WIRE_SIZE], f)
        done += part
    f.progress[k, n] = done
    if done == nbytes:
        mailbox.release(head)
        return DONE
    return MOVED if done > before else WAIT
