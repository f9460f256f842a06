"""Binomial tree: few rounds and few messages, for data so small that bytes do not count.

A rank's parent is the rank with its lowest set bit cleared; for a root other than 0 the ranks are
turned.  The subtree of rank r is r, r+1, ..., r + lowbit(r) - 1: contiguous, so that a gather
moves one span of chunks per message.

    size 8               0
                   .-----+-----.
                   4     2     1          sent, or received, in this order
                 .-+-.   |
                 6   5   3
                 |
                 7

With S bytes per rank and L = ceil(log2 p), at most:

    collective      rounds    bytes sent per rank    reduced bytes per rank    chunks
    broadcast         L         L S                    0                         1
    reduce            L         S                      L S                       1
    allreduce        2L         L S                    L S                       1
    allgather        2L         L S                    0                         p
    reduce_scatter   2L         3/2 S                  L S                       p

A rank combines its children in the order of their distance, 1, 2, 4, ..., each with its subtree.

Source: Chan, Heimlich, Purkayastha & van de Geijn, "Collective communication: theory, practice,
and experience", Concurrency and Computation: Practice and Experience 19(13), 2007.
"""

from collections.abc import Iterator

from collectives.schedules.addressing import on, rooted
from collectives.step import Op, Step


def num_chunks(verb: str, size: int) -> int:
    """Whole messages travel."""
    return 1


def broadcast(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """From the root to the farthest child first: it has the largest subtree to serve."""
    return rooted(_broadcast_from_0, rank, size, root)


def reduce(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """From the leaves to the root, the nearest child first: it has the smallest subtree."""
    return rooted(_reduce_to_0, rank, size, root)


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Reduce to rank 0, then broadcast from it."""
    yield from _reduce_to_0(rank, size)
    yield from _broadcast_from_0(rank, size)


def allgather(rank: int, size: int) -> Iterator[Step]:
    """Gather the chunks on rank 0, a subtree per message, then broadcast all of them."""
    for child in _children(rank, size):
        yield Step(Op.RECV, child, child, _subtree(child, size))
    if rank:
        yield Step(Op.SEND, _parent(rank), rank, _subtree(rank, size))
    yield from _all_chunks(_broadcast_from_0(rank, size), size)


def reduce_scatter(rank: int, size: int) -> Iterator[Step]:
    """Reduce all chunks to rank 0, then scatter them, a subtree per message."""
    yield from _all_chunks(_reduce_to_0(rank, size), size)
    if rank:
        yield Step(Op.RECV, _parent(rank), rank, _subtree(rank, size))
    for child in reversed(_children(rank, size)):
        yield Step(Op.SEND, child, child, _subtree(child, size))


def _broadcast_from_0(rank: int, size: int) -> Iterator[Step]:
    if rank:
        yield Step(Op.RECV, _parent(rank), 0)
    for child in reversed(_children(rank, size)):
        yield Step(Op.SEND, child, 0)


def _reduce_to_0(rank: int, size: int) -> Iterator[Step]:
    for child in _children(rank, size):
        yield Step(Op.RECV_REDUCE, child, 0)
    if rank:
        yield Step(Op.SEND, _parent(rank), 0)


def _all_chunks(steps: Iterator[Step], size: int) -> Iterator[Step]:
    """The same steps on `size` chunks at once."""
    return on(steps, lambda q: q, scale=size)


def _parent(rank: int) -> int:
    return rank & (rank - 1)


def _children(rank: int, size: int) -> list[int]:
    """Nearest first: rank + 1, rank + 2, rank + 4, ... below its own lowest bit."""
    reach = _subtree(rank, size)
    return [rank + (1 << j) for j in range((reach - 1).bit_length())]


def _subtree(rank: int, size: int) -> int:
    """How many ranks, itself included, hang on `rank`."""
    return min(rank & -rank, size - rank) if rank else size
