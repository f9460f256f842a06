"""The shared-memory channel: one mailbox per (source, destination, place) on a host.

A mailbox is a queue of SLOTS messages.  A short message (at most `eager` bytes) is copied into its
slot by the sender and out of it by the receiver.  Of a long message the sender only says where it
is; the receiver reads it straight from the sender's memory (Linux cross-memory attach,
process_vm_readv), piece by piece, reducing each piece while it is in cache.  There is no MPI
call and no lock: counters are published with release stores and read with acquire loads.

    header  0    written: messages, by the sender
            64   SLOTS x (bytes, address), by the sender
            128  read: messages, by the receiver
            136  taken: bytes of the oldest message, by the receiver
    data    SLOTS x `eager` bytes

`place` is the number of a block in flight, so blocks do not wait for each other; within a
mailbox, messages are in the order of the plan's rows, and both ends know their lengths.

Measured on 2 cores against messages through 64 KB shared cells (two copies), float32 ring: one
copy by the receiver is 1.6 times as fast at 1 MB and 2.3 times at 4 MB.  On fewer cores than ranks
it also needs no alternation of sender and receiver.

The memory is a `segment`.  Where there is none (another operating system, ranks of one host in
different PID namespaces) messages go through MPI; so do long ones where the system forbids reading
a peer's memory.
"""

import mmap

import numpy as np
from numba import njit

from collectives import segment
from collectives.blocks import MAX_DEPTH
from collectives.kernels.atomics import load_acquire, store_release
from collectives.kernels.scalars import load, store

SLOTS = 4
EAGER_NBYTES = 1 << 14
MIN_EAGER_NBYTES = 1 << 10
BUDGET = 8 << 20  # bytes of address space per rank; what is not used is no memory
HEADER_NBYTES = 192
LENGTHS, READ, TAKEN = 64, 128, 136  # offsets in a header; `written` is at 0

# Entries of `SharedMemory.layout`, which compiled code is given; then one process id per rank.
HEADERS, DATA, EAGER, RANKS, PIDS = range(5)


@njit(inline="always")
def header(layout, box):
    """Address of a mailbox's header."""
    return layout[HEADERS] + box * HEADER_NBYTES


@njit(inline="always")
def slot(layout, box, number):
    """Address of the bytes of a short message."""
    return layout[DATA] + (box * SLOTS + number % SLOTS) * layout[EAGER]


@njit(inline="always")
def written(head):
    """Messages sent so far, for the sender."""
    return load(head, 0, np.int64)


@njit(inline="always")
def read(head):
    """Messages received so far, for the receiver."""
    return load(head + READ, 0, np.int64)


@njit(inline="always")
def has_room(head):
    """For the sender: whether another message fits."""
    return written(head) - load_acquire(head + READ) < SLOTS


@njit(inline="always")
def publish(head, nbytes, address):
    """For the sender: the next message is in its slot, or `nbytes` long at `address`."""
    number = written(head)
    where = head + LENGTHS + number % SLOTS * 16
    store(where, 0, np.int64(nbytes))
    store(where, 1, np.int64(address))
    store_release(head, number + 1)


@njit(inline="always")
def unread(head, number, nbytes):
    """For the sender: how many bytes of its message `number` the receiver still has to read."""
    done = load_acquire(head + READ)
    if done > number:
        return 0
    return nbytes - load_acquire(head + TAKEN) if done == number else nbytes


@njit(inline="always")
def has_message(head):
    """For the receiver: whether there is a message."""
    return load_acquire(head) > read(head)


@njit(inline="always")
def length(head):
    """For the receiver: bytes of the oldest message."""
    return load(head + LENGTHS + read(head) % SLOTS * 16, 0, np.int64)


@njit(inline="always")
def address(head):
    """For the receiver: where the oldest message is in its sender's memory, if it is long."""
    return load(head + LENGTHS + read(head) % SLOTS * 16, 1, np.int64)


@njit(inline="always")
def taken(head):
    """For the receiver: bytes of the oldest message that it has read."""
    return load(head + TAKEN, 0, np.int64)


@njit(inline="always")
def take(head, nbytes):
    """For the receiver: it has read the first `nbytes` of the oldest message."""
    store_release(head + TAKEN, nbytes)


@njit(inline="always")
def release(head):
    """For the receiver: it is done with the oldest message."""
    store_release(head + TAKEN, 0)
    store_release(head + READ, read(head) + 1)


class SharedMemory:
    """The mailboxes between the ranks of one host.

    layout : int64, entries HEADERS, DATA, EAGER, RANKS, PIDS and on; zeros if there is none
    ranks : the ranks that share it, in order; empty if there is none
    eager : bytes of the longest message that may use it: all, where peers' memory can be read
    """

    def __init__(self, comm, local_ranks: list[int]):
        """Collective over the mpi4py communicator `comm`."""
        count = len(local_ranks)
        self.layout = np.zeros(PIDS + count, np.int64)
        self.ranks: tuple[int, ...] = ()
        self.limit = 0
        boxes, eager = count ** 2 * MAX_DEPTH, _eager_nbytes(count)
        headers = -(-boxes * HEADER_NBYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        nbytes = headers + boxes * SLOTS * eager
        self._memory, pids, readable = segment.share(comm, local_ranks, nbytes)
        if self._memory is None:
            return
        base = self._memory.ctypes.data
        self.layout[:] = base, base + headers, eager, count, *pids
        self.ranks, self.limit = tuple(local_ranks), (1 << 62) if readable else eager


def _eager_nbytes(ranks: int) -> int:
    fit = BUDGET // (ranks * MAX_DEPTH * SLOTS)
    return max(MIN_EAGER_NBYTES, min(EAGER_NBYTES, fit // 1024 * 1024))
