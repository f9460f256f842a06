"""Recursive doubling: in round k every rank exchanges all that it has with rank ^ 2**k.

    size 4, allreduce        rank   0      1      2      3
                                    a      b      c      d
        exchange with rank ^ 1      ab     ab     cd     cd
        exchange with rank ^ 2      abcd   abcd   abcd   abcd

With S bytes per rank and k = log2 p (one chunk for allreduce, p for allgather):

    collective    rounds    bytes sent per rank    reduced bytes per rank
    allreduce       k         k S                    k S
    allgather       k         S (p-1)/p              0

The fewest rounds of all; for large S prefer `halving_doubling`, which sends less.  If p is not a
power of two, k = floor(log2 p), p - 2**k ranks hand their data to a neighbour first and get the
result at the end (`addressing.Fold`): 2 more rounds, and S more bytes sent by the neighbour.

Both ranks of an exchange combine the same two values, so with a commutative operation (IEEE
addition is) all ranks hold the same bits.

Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from collections.abc import Iterator

from collectives.schedules.addressing import Fold, on
from collectives.step import Op, Step


def num_chunks(verb: str, size: int) -> int:
    """Whole messages travel."""
    return 1


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Exchange and combine the whole vector."""
    fold = Fold(size)
    core = on(_exchange(fold.core_rank(rank), fold.core_size), fold.leader)
    yield from fold.around(rank, core, hand_in=(Op.RECV_REDUCE, (0, 1)), hand_back=(0, 1))


def allgather(rank: int, size: int) -> Iterator[Step]:
    """Exchange all chunks so far; they are a contiguous span, twice as long in every round."""
    fold = Fold(size)
    core = fold.widen(doubling(fold.core_rank(rank), fold.core_size))
    yield from fold.around(rank, core, hand_in=(Op.RECV, (rank | 1, 1)), hand_back=(0, size))


def doubling(rank: int, size: int) -> Iterator[Step]:
    """Allgather for `size` a power of two: before round k, chunks agree with rank above bit k."""
    span = 1
    while span < size:
        peer = rank ^ span
        yield Step(Op.SEND, peer, rank & -span, span)
        yield Step(Op.RECV, peer, peer & -span, span)
        span *= 2


def _exchange(rank: int, size: int) -> Iterator[Step]:
    """Allreduce of one chunk for `size` a power of two."""
    distance = 1
    while distance < size:
        yield Step(Op.SEND, rank ^ distance, 0)
        yield Step(Op.RECV_REDUCE, rank ^ distance, 0)
        distance *= 2
