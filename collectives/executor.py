"""The host executor: one compiled loop over a plan's rows, the GIL released.

`depth` blocks are in flight, each in a place of its own.  Each walks the rows: it posts receives
as far ahead as the plan's hazards allow, executes rows in order until one must wait, and hands over
to the next place.  A finished block is followed by block + depth.  Blocks are independent runs of
a verified schedule with tags and mailboxes of their own, so they cannot deadlock each other;
messages of one block between two ranks match in row order.

A SEND row never blocks: it posts a request to MPI, or a message to a mailbox as soon as there is
room.  How messages travel is in `transfer.py`.

The loop returns when all blocks are done, when an MPI call failed, or when it has waited for
`budget` seconds without progress, so that Python can look at signals, stalls and timeouts; it is
then called again with the same state.

Waiting: a rank spins for `spin` rounds over its blocks; then see `waiting`.
"""

from functools import lru_cache

from numba import njit, types

from collectives import mpi_abi as mpi
from collectives.frame import (
    BLOCK,
    DONE,
    FAIL,
    FRAME,
    FREE,
    MOVED,
    PC,
    POSTED,
    SENDS_DONE,
    SENT,
    VARIANT,
    WAIT,
    WAIT_ROW,
)
from collectives.kernels import compile as compiler
from collectives.kernels.copying import copy
from collectives.operands import combine, encode, landing_of, nbytes_of, source_of, target_of
from collectives.plan import CHANNEL, SENDS, VERB, Channel, Verb
from collectives.transfer import (
    post_receives,
    progress_sends,
    receive_by_mpi,
    receive_shared,
    send,
)
from collectives.waiting import relax

# What `advance` returns.
FINISHED, PENDING, FAILED = 0, 1, -1

_SEND, _RECV, _REDUCE, _COPY, _ENCODE, _DECODE = (
    verb.value for verb in (Verb.SEND, Verb.RECV, Verb.REDUCE, Verb.COPY, Verb.ENCODE,
                            Verb.DECODE))
_SHARED = Channel.SHARED.value


@njit
def _execute(k, n, f):
    """Execute row n, or as much of it as is possible now."""
    verb, nbytes = f.rows[n, VERB], nbytes_of(k, n, f)
    if nbytes == 0:
        return DONE
    if verb == _SEND:
        return send(k, n, f)
    if verb in (_RECV, _REDUCE):
        if f.rows[n, CHANNEL] == _SHARED:
            return receive_shared(k, n, nbytes, f)
        got = receive_by_mpi(k, n, nbytes, f)
        if got != DONE or verb == _RECV:
            return got
    if f.rows[n, SENDS] > f.state[k, SENDS_DONE]:
        return WAIT
    if verb == _COPY:
        copy(target_of(k, n, f), source_of(k, n, f), nbytes)
    elif verb == _REDUCE:
        combine(k, n, landing_of(k, n, f), f)
    elif verb == _ENCODE:
        encode(k, n, 0, f)
    elif verb == _DECODE:
        encode(k, n, source_of(k, n, f), f)
    return DONE


@njit
def _next_block(k, block, f):
    """Start `block`, or retire this place if there is none."""
    if block >= f.first_block[f.first_block.size - 1]:
        f.state[k, BLOCK] = -1
        return
    variant = f.state[k, VARIANT]
    while block >= f.first_block[variant + 1]:
        variant += 1
    f.state[k, VARIANT] = variant
    f.state[k, BLOCK] = block
    f.state[k, PC] = f.state[k, POSTED] = f.state[k, SENT] = f.state[k, SENDS_DONE] = 0
    f.flags[k, :] = FREE
    f.progress[k, :] = 0


@njit
def _visit(k, f):
    """Take the block in place k as far as it goes."""
    moved, length = WAIT, f.rows.shape[0]
    while True:
        if f.state[k, POSTED] < length and post_receives(k, f) == FAIL:
            return FAIL
        if f.state[k, SENT] < f.state[k, PC]:
            got = progress_sends(k, f)
            if got == FAIL:
                return FAIL
            moved = max(moved, got)
        n = f.state[k, PC]
        if n == length:
            if f.state[k, SENT] == length:
                _next_block(k, f.state[k, BLOCK] + f.state.shape[0], f)
                moved = MOVED
            return moved
        got = _execute(k, n, f)
        if got == FAIL:
            return FAIL
        if got != DONE:
            f.report[WAIT_ROW] = n
            return max(moved, got)
        f.state[k, PC] = n + 1
        moved = MOVED


@njit
def _advance(f, begin, budget):
    """Run until finished, failed, or idle for `budget` seconds; if `begin`, from the start."""
    if begin:
        for k in range(f.state.shape[0]):
            f.state[k, VARIANT] = 0
            _next_block(k, k, f)
    idle, since = 0, -1.0
    while True:
        moved, alive = False, False
        for k in range(f.state.shape[0]):
            if f.state[k, BLOCK] >= 0:
                alive = True
                got = _visit(k, f)
                if got == FAIL:
                    return FAILED
                moved = moved or got != WAIT
        if not alive:
            return FINISHED
        if moved:
            idle, since = 0, -1.0
            continue
        idle += 1
        if idle < f.spin:
            continue
        now = mpi.wtime()
        if since < 0.0:
            since = now
        if now - since > budget:
            return PENDING
        relax(idle - f.spin)


@lru_cache(maxsize=1)
def compiled():
    """`_advance`, compiled or loaded from the cache."""
    return compiler.function(_advance.py_func, types.int64(FRAME, types.boolean, types.float64),
                             environment=mpi.library())
