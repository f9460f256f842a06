"""Everybody talks to everybody at once: as few rounds as there can be, p-1 messages in each.

With S bytes per rank cut into p chunks (p-1 for broadcast and reduce, one per rank but the root):

    collective       rounds    bytes sent per rank    reduced bytes per rank
    reduce_scatter     1         S (p-1)/p              S (p-1)/p
    allgather          1         S (p-1)/p              0
    allreduce          2        2S (p-1)/p              S (p-1)/p
    broadcast          2         S                      0
    reduce             2         S                      S

Bytes meet the lower bound of allreduce, as the ring's do; the price is p-1 messages in flight and
a connection between every two ranks.  At distance t = 1, 2, ... rank r sends to r+t and receives
from r-t (mod p), so that no rank is the first target of two others, and a rank waits for its
messages in the order in which they leave.

Chunk c is reduced in the order c, c-1, c-2, ..., c-p+1 (mod p), by its owner alone, whatever the
order of arrival: the result does not depend on timing.

Source: the pairwise exchange of Thakur, Rabenseifner & Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005, here with all messages posted first.
"""

from collections.abc import Iterator

from collectives.schedules.addressing import on
from collectives.step import Op, Step


def num_chunks(verb: str, size: int) -> int:
    """One per rank that reduces or forwards: a root does not."""
    return size if verb == "allreduce" else max(1, size - 1)


def reduce_scatter(rank: int, size: int) -> Iterator[Step]:
    """Send chunk q to rank q, for all q; reduce what arrives into chunk `rank`."""
    for t in range(1, size):
        yield Step(Op.SEND, peer=(rank + t) % size, chunk=(rank + t) % size)
    for t in range(1, size):
        yield Step(Op.RECV_REDUCE, peer=(rank - t) % size, chunk=rank)


def allgather(rank: int, size: int) -> Iterator[Step]:
    """Send chunk `rank` to all others; receive chunk q from rank q."""
    for t in range(1, size):
        yield Step(Op.SEND, peer=(rank + t) % size, chunk=rank)
    for t in range(1, size):
        yield Step(Op.RECV, peer=(rank - t) % size, chunk=(rank - t) % size)


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Reduce-scatter, then allgather the reduced chunks."""
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)


# Broadcast and reduce number the ranks but the root 0 .. p-2, from the root's successor on.

def broadcast(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """The root deals one chunk to each of the others, which then allgather among themselves."""
    other, me = _others(rank, size, root)
    if rank == root:
        for q in range(size - 1):
            yield Step(Op.SEND, other(q), q)
    else:
        yield Step(Op.RECV, root, me)
        yield from on(allgather(me, size - 1), other)


def reduce(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """The others reduce-scatter, with the root's part as the last term; the root collects."""
    other, me = _others(rank, size, root)
    if rank == root:
        for q in range(size - 1):
            yield Step(Op.SEND, other(q), q)
        for q in range(size - 1):
            yield Step(Op.RECV, other(q), q)
    else:
        yield from on(reduce_scatter(me, size - 1), other)
        yield Step(Op.RECV_REDUCE, root, me)
        yield Step(Op.SEND, root, me)


def _others(rank: int, size: int, root: int):
    """The q-th rank that is not the root, as a function of q; and the q of `rank`."""
    return lambda q: (root + 1 + q) % size, (rank - root - 1) % size
