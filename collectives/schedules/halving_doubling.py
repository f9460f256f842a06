"""Recursive halving to reduce-scatter, recursive doubling to allgather (Rabenseifner's algorithm).

In each halving round a rank exchanges, with the rank whose number differs in one bit, the half of
its span that it gives up; what it keeps is half as long.  Doubling runs the film backwards.

    size 4, chunks of which a rank holds the sum over its group so far

                                     rank 0     rank 1     rank 2     rank 3
        at first                     0 1 2 3    0 1 2 3    0 1 2 3    0 1 2 3
        halving with rank ^ 2        0 1        0 1            2 3        2 3
        halving with rank ^ 1        0            1            2            3
        doubling with rank ^ 1       0 1        0 1            2 3        2 3
        doubling with rank ^ 2       0 1 2 3    0 1 2 3    0 1 2 3    0 1 2 3

With S bytes per rank, p a power of two, k = log2 p, at most:

    collective       rounds    bytes sent per rank    reduced bytes per rank
    reduce_scatter     k         S (p-1)/p              S (p-1)/p
    allgather          k         S (p-1)/p              0
    allreduce         2k        2S (p-1)/p              S (p-1)/p
    broadcast         2k        2S (p-1)/p              0
    reduce            2k         S (p-1)/p + S/2        S (p-1)/p

The ring's bytes in far fewer rounds.  If p is not a power of two, k = floor(log2 p), and p - 2**k
ranks hand their data to a neighbour first and get the result at the end (`addressing.Fold`): up
to 2 more rounds, and up to S more bytes sent and reduced by the neighbour.  allreduce, broadcast
and reduce have 2**k chunks.

A chunk is combined by pairs of groups of ranks, at distance 2**(k-1) first, 1 last.

Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; broadcast as
scatter and allgather: Thakur, Rabenseifner & Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005.
"""

from collections.abc import Iterator
from itertools import chain

from collectives.schedules.addressing import Fold, on, rooted
from collectives.schedules.recursive_doubling import allgather, doubling
from collectives.step import Op, Step

__all__ = ["allgather", "allreduce", "broadcast", "num_chunks", "reduce", "reduce_scatter"]


def num_chunks(verb: str, size: int) -> int:
    """One per core rank."""
    return Fold(size).core_size


def reduce_scatter(rank: int, size: int) -> Iterator[Step]:
    """Halve the spans; a leader returns its neighbour's chunk."""
    fold = Fold(size)
    core = fold.widen(_halving(fold.core_rank(rank), fold.core_size))
    yield from fold.around(rank, core, (Op.RECV_REDUCE, (0, size)), hand_back=(rank | 1, 1))


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Halving, then doubling."""
    fold = Fold(size)
    me, core_size = fold.core_rank(rank), fold.core_size
    core = on(chain(_halving(me, core_size), doubling(me, core_size)), fold.leader)
    everything = (0, core_size)
    yield from fold.around(rank, core, (Op.RECV_REDUCE, everything), hand_back=everything)


def broadcast(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """Scatter by halving, then allgather by doubling."""
    return rooted(_broadcast_from_0, rank, size, root)


def reduce(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """Reduce-scatter by halving, then gather to the root."""
    return rooted(_reduce_to_0, rank, size, root)


def _broadcast_from_0(rank: int, size: int) -> Iterator[Step]:
    fold = Fold(size)
    me, core_size = fold.core_rank(rank), fold.core_size
    core = on(chain(_scatter(me, core_size), _complete(me, core_size)), fold.leader)
    yield from fold.around(rank, core, hand_back=(0, core_size))


def _reduce_to_0(rank: int, size: int) -> Iterator[Step]:
    fold = Fold(size)
    me, core_size = fold.core_rank(rank), fold.core_size
    core = on(chain(_halving(me, core_size), _gather(me, core_size)), fold.leader)
    yield from fold.around(rank, core, (Op.RECV_REDUCE, (0, core_size)))


# From here on `size` is a power of two, and a span starts at a multiple of its length: the span
# of length n that contains chunk c starts at c & -n.

def _spans(size: int) -> list[int]:
    """1, 2, 4, ..., size/2."""
    return [1 << k for k in range(size.bit_length() - 1)]


def _halving(rank: int, size: int) -> Iterator[Step]:
    """Reduce-scatter: keep the half that contains chunk `rank`, give up the other."""
    for span in reversed(_spans(size)):
        peer = rank ^ span
        yield Step(Op.SEND, peer, peer & -span, span)
        yield Step(Op.RECV_REDUCE, peer, rank & -span, span)


def _scatter(rank: int, size: int) -> Iterator[Step]:
    """From rank 0, a half at a time, the chunks of rank q to rank q."""
    for span in reversed(_spans(size)):
        if rank % (2 * span) == 0:
            yield Step(Op.SEND, rank + span, rank + span, span)
        elif rank % (2 * span) == span:
            yield Step(Op.RECV, rank - span, rank, span)


def _gather(rank: int, size: int) -> Iterator[Step]:
    """The scatter backwards: to rank 0, twice as much at a time."""
    for span in _spans(size):
        if rank % (2 * span) == 0:
            yield Step(Op.RECV, rank + span, rank + span, span)
        elif rank % (2 * span) == span:
            yield Step(Op.SEND, rank - span, rank, span)


def _complete(rank: int, size: int) -> Iterator[Step]:
    """Doubling after `_scatter`: the lower rank of a pair may have dealt the upper its half."""
    for span in _spans(size):
        peer = rank ^ span
        if rank % (2 * span) != span:
            yield Step(Op.SEND, peer, rank & -span, span)
        if rank % (2 * span) != 0:
            yield Step(Op.RECV, peer, peer & -span, span)
