"""A collective among all ranks of one host, in lockstep through memory that all share.

Each rank has two slots, used in turn for the blocks of all calls of a communicator, one after the
other; and a line of counters, written by it alone.  One block goes through three stages:

    ENTER     copy into the own slot what others need of the own tensor      entered = number + 1
    REDUCE    reduce the own chunk, straight from all ranks' slots           reduced = number + 1
    TAKE      copy what others hold for this rank out of their slots        finished = number + 1

                   gives (ENTER)    reduces      takes             awaits at REDUCE
    allreduce      others' chunks   own chunk    others' results   all
    reduce         others' chunks   own chunk    root: results     all
    .. if short    all of it        all of it    -                 all; reduce: the root alone
    reduce_scatter others' chunks   own chunk    -                 all
    allgather      its own          -            others' chunks    all
    broadcast      root: all        -            all               the root

A long allreduce so copies each value in once, reduces it straight into the caller's array, and
its one result is read by all.  A short one has one synchronisation: every rank reduces everything.
Operands are combined in the order of ranks, so results have the same bits in every run.

Why no value is overwritten too early.  ENTER of block n waits until all have finished n-2, which
used the same slot.  The result of block n is written to the own chunk's place in the slot, which
nobody else's stage of n uses.  A wait is for an earlier stage of the same block, or for a block
before: so no two ranks wait for each other.  Who has entered a block of a call has finished all
blocks of the calls before; `safe` remembers that, so a short call looks at no other counter.

Each entry also says what the call is.  Ranks that made different calls fail and do not mix data.
"""

from functools import lru_cache

import numpy as np
from numba import njit, types

from collectives import mpi_abi as mpi
from collectives.kernels import compile as compiler
from collectives.kernels.atomics import load_acquire, store_release
from collectives.kernels.copying import copy
from collectives.kernels.scalars import load, store
from collectives.operands import call_kernel
from collectives.waiting import relax

FINISHED, PENDING, FAILED = 0, 1, -1
# What a call of `advance` is given: nothing new, addresses, or the ids of two NumPy arrays, whose
# C struct begins with that of all objects, followed by the address of the data.
GOING_ON, ADDRESSES, ARRAYS = range(3)
DATA = object.__basicsize__
# Values of GIVES, REDUCES, TAKES and AWAITS.
NONE, WHOLE, OTHERS, OWN, ROOTS = range(5)
# A rank's line of counters, bytes; `what` twice, for even and odd blocks.
ENTERED, REDUCED, DONE, WHAT = 0, 8, 16, 24
LINE_NBYTES = 128  # two lines of a cache: processors fetch them in pairs
# What is common to all calls of a communicator: the number of the next block, and `safe`.
NEXT, SAFE = 0, 1
# Stages.
_ENTER, _REDUCE, _TAKE = range(3)

# Words of a call.  Fixed: who and where; how much; what to do; with what kernels.
(RANK, SIZE, ROOT, LINES, SLOTS, SLOT_NBYTES, ORDER, SPIN,
 ITEM, COUNT, STEP, BLOCKS, ALIGN, REGIONS, PER_RANK, TARGET_OWN,
 GIVES, REDUCES, TAKES, AWAITS, TO_TARGET, KEEPS, IDENTITY,
 FIRST, MIDDLE, LAST, DIVISOR, PARTIAL, COUNTERS, SENT_NBYTES,
 # Changing: the call's buffers, and how far it is.
 SOURCE, TARGET, BLOCK, STAGE, PEER, ENTERED_BLOCKS, BASE, WORDS) = range(38)


@njit(inline="always")
def _line(w, q):
    return w[LINES] + q * LINE_NBYTES


@njit(inline="always")
def _slot(w, q, j):
    """Address of rank q's slot for block j of this call."""
    return w[SLOTS] + (2 * q + (w[BASE] + j) % 2) * w[SLOT_NBYTES]


@njit(inline="always")
def _length(w, j):
    return min(w[STEP], w[COUNT] - j * w[STEP])


@njit(inline="always")
def _cut(w, q, length):
    """Where chunk q begins, of a block of `length` elements cut evenly."""
    each = -(-length // (w[SIZE] * w[ALIGN])) * w[ALIGN]
    return min(length, q * each)


@njit(inline="always")
def _chunk(w, q, j):
    """Chunk q of block j: first element in the tensor, in an array of that chunk alone, in the
    slot; and how many.
    """
    if w[PER_RANK]:
        start, count = load(w[REGIONS], 2 * q, np.int64), load(w[REGIONS], 2 * q + 1, np.int64)
        first = min(count, j * w[STEP])
        return (start + first, first, 0 if w[GIVES] == OWN else q * w[STEP],
                min(w[STEP], count - first))
    length = _length(w, j)
    first = _cut(w, q, length)
    return j * w[STEP] + first, 0, first, _cut(w, q + 1, length) - first


@njit(inline="always")
def _reached(w, q, counter, value):
    return load_acquire(_line(w, q) + counter) >= value


@njit
def _await(w, q, counter, value, budget):
    """Wait for a counter of rank q; False after `budget` seconds."""
    for _ in range(w[SPIN]):
        if _reached(w, q, counter, value):
            return True
    since, idle = mpi.wtime(), 0
    while not _reached(w, q, counter, value):
        if mpi.wtime() - since > budget:
            return False
        relax(idle)
        idle += 1
    return True


@njit
def _await_all(w, counter, value, budget):
    """Wait for a counter of all others, from rank PEER on; False after `budget` seconds.

    PEER is how far the stage is, so it is 0 when a stage begins.
    """
    for q in range(w[PEER], w[SIZE]):
        if q != w[RANK] and not _await(w, q, counter, value, budget):
            w[PEER] = q
            return False
    return True


@njit
def _is_safe(w, j):
    """Whether all ranks have finished the block that used the slot of block j."""
    number = w[BASE] + j - 1
    if load(w[ORDER], SAFE, np.int64) >= number:
        return True
    for q in range(w[SIZE]):
        if q != w[RANK] and not _reached(w, q, DONE, number):
            return False
    store(w[ORDER], SAFE, number)
    return True


@njit
def _enter(w, j):
    """Copy into the slot what others need."""
    item, slot = w[ITEM], _slot(w, w[RANK], j)
    if w[GIVES] == WHOLE:
        copy(slot, w[SOURCE] + j * w[STEP] * item, _length(w, j) * item)
    elif w[GIVES] == OTHERS:
        for i in range(1, w[SIZE]):
            at, _, place, count = _chunk(w, (w[RANK] + i) % w[SIZE], j)
            copy(slot + place * item, w[SOURCE] + at * item, count * item)
    elif w[GIVES] == OWN:
        at, own, _, count = _chunk(w, w[RANK], j)
        copy(slot, w[SOURCE] + own * item, count * item)
        copy(w[TARGET] + at * item, slot, count * item)
    line, number = _line(w, w[RANK]), w[BASE] + j
    store(line + WHAT + 8 * (number % 2), 0, w[IDENTITY])
    store_release(line + ENTERED, number + 1)
    w[ENTERED_BLOCKS] = j + 1


@njit
def _agree(w, j):
    """The lowest rank that is in another call than this one, of those awaited; -1 for none."""
    what = WHAT + 8 * ((w[BASE] + j) % 2)
    for q in range(w[SIZE]):
        awaited = w[AWAITS] == WHOLE or q == w[ROOT]
        if awaited and load(_line(w, q) + what, 0, np.int64) != w[IDENTITY]:
            return q
    return -1


@njit(inline="always")
def _operand(w, q, j, place, own):
    """Rank q's operand: in its slot, or this rank's own."""
    return own if q == w[RANK] else _slot(w, q, j) + place * w[ITEM]


@njit
def _combine(w, j, place, own, count, dst):
    """dst = the operands of all ranks, `place` elements into their slots, in order of ranks."""
    last = w[SIZE] - 1
    partial = _operand(w, 0, j, place, own)
    for q in range(1, last):
        call_kernel(w[FIRST] if q == 1 else w[MIDDLE], w[PARTIAL], partial,
                    _operand(w, q, j, place, own), count, w[DIVISOR])
        partial = w[PARTIAL]
    call_kernel(w[LAST], dst, partial, _operand(w, last, j, place, own), count, w[DIVISOR])


@njit
def _reduce(w, j):
    """Reduce this rank's part of block j."""
    item = w[ITEM]
    if w[REDUCES] == WHOLE:
        at = j * w[STEP] * item
        _combine(w, j, 0, w[SOURCE] + at, _length(w, j), w[TARGET] + at)
        return
    at, own, place, count = _chunk(w, w[RANK], j)
    kept = _slot(w, w[RANK], j) + place * item
    dst = w[TARGET] + (own if w[TARGET_OWN] else at) * item if w[TO_TARGET] else kept
    if count:
        _combine(w, j, place, w[SOURCE] + at * item, count, dst)
    if w[KEEPS] and w[TO_TARGET]:
        copy(kept, dst, count * item)


@njit
def _take(w, j, budget):
    """Copy what others hold for this rank, from rank PEER on; False if one is not there yet."""
    item = w[ITEM]
    if w[TAKES] == WHOLE and (w[RANK] != w[ROOT] or w[SOURCE] != w[TARGET]):
        at = j * w[STEP] * item
        copy(w[TARGET] + at, _slot(w, w[ROOT], j), _length(w, j) * item)
    elif w[TAKES] == OTHERS:
        for i in range(max(1, w[PEER]), w[SIZE]):  # each rank begins with another one
            q = (w[RANK] + i) % w[SIZE]
            if w[REDUCES] and not _await(w, q, REDUCED, w[BASE] + j + 1, budget):
                w[PEER] = i
                return False
            at, _, place, count = _chunk(w, q, j)
            copy(w[TARGET] + at * item, _slot(w, q, j) + place * item, count * item)
    return True


@njit
def _begin(w, source, target):
    w[SOURCE], w[TARGET] = source, target
    w[BLOCK] = w[PEER] = w[ENTERED_BLOCKS] = 0
    w[STAGE] = _ENTER
    w[BASE] = load(w[ORDER], NEXT, np.int64)
    store(w[ORDER], NEXT, w[BASE] + w[BLOCKS])
    store(w[COUNTERS], 0, load(w[COUNTERS], 0, np.int64) + w[BLOCKS])
    store(w[COUNTERS], 1, load(w[COUNTERS], 1, np.int64) + w[SENT_NBYTES])


@njit
def _arrived(w, j, budget):
    """Wait for those whose part is needed for block j."""
    number = w[BASE] + j + 1
    if w[AWAITS] == ROOTS:
        return w[RANK] == w[ROOT] or _await(w, w[ROOT], ENTERED, number, budget)
    if w[AWAITS] == WHOLE:
        if not _await_all(w, ENTERED, number, budget):
            return False
        if j == 0:
            store(w[ORDER], SAFE, max(w[BASE], load(w[ORDER], SAFE, np.int64)))
    return True


@njit
def _advance(w, begin, source, target, budget):
    """Run until finished, failed (PEER says with whom), or idle for `budget` seconds."""
    if begin == ADDRESSES:
        _begin(w, source, target)
    elif begin == ARRAYS:
        _begin(w, load(source + DATA, 0, np.int64), load(target + DATA, 0, np.int64))
    line = _line(w, w[RANK])
    while w[BLOCK] < w[BLOCKS]:
        j = w[BLOCK]
        number = w[BASE] + j
        if w[STAGE] == _ENTER:
            if w[ENTERED_BLOCKS] == j:
                if not _is_safe(w, j) and not _await_all(w, DONE, number - 1, budget):
                    return PENDING
                _enter(w, j)
            w[STAGE], w[PEER] = _REDUCE, 0
        if w[STAGE] == _REDUCE:
            if not _arrived(w, j, budget):
                return PENDING
            if w[AWAITS]:
                other = _agree(w, j)
                if other >= 0:
                    w[PEER] = other
                    return FAILED
            if j + 1 < w[BLOCKS] and w[ENTERED_BLOCKS] == j + 1 and _is_safe(w, j + 1):
                _enter(w, j + 1)  # so that others need not wait for it later
            if w[REDUCES]:
                _reduce(w, j)
            store_release(line + REDUCED, number + 1)
            w[STAGE], w[PEER] = _TAKE, 0
        if not _take(w, j, budget):
            return PENDING
        store_release(line + DONE, number + 1)
        w[STAGE], w[PEER] = _ENTER, 0
        w[BLOCK] = j + 1
    return FINISHED


@lru_cache(maxsize=1)
def compiled():
    """`_advance`, compiled or loaded from the cache."""
    return compiler.function(
        _advance.py_func, types.int64(types.int64[::1], types.int64, types.int64, types.int64,
                                      types.float64), environment=mpi.library())
