"""Ring reduce-scatter, allgather and allreduce; broadcast and reduce along the ring as a chain.

Rank r only ever talks to its predecessor r-1 and its successor r+1 (mod p).  With S bytes per
rank cut into p chunks (one for broadcast and reduce):

    collective       rounds     bytes sent per rank    reduced bytes per rank
    reduce_scatter    p-1         S (p-1)/p              S (p-1)/p
    allgather         p-1         S (p-1)/p              0
    allreduce       2(p-1)       2S (p-1)/p              S (p-1)/p
    broadcast         p-1         S                      0
    reduce            p-1         S                      S

The byte count of allreduce is the lower bound for any allreduce; the round count is not, so prefer
`halving_doubling` for small S.  The chain pays off only pipelined: cut into m segments it takes
p-2+m rounds of S/m bytes, which for large m is the time to send S once.

Chunk c is reduced in ring order, starting at rank c+1 and ending at its owner, rank c.

Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009.
"""

from collections.abc import Iterator

from collectives.schedules.addressing import rooted
from collectives.step import Op, Step


def num_chunks(verb: str, size: int) -> int:
    """One per rank; a chain has nothing to scatter."""
    return size if verb == "allreduce" else 1


def reduce_scatter(rank: int, size: int) -> Iterator[Step]:
    """Leave chunk `rank` fully reduced on `rank`; the other chunks hold partial sums."""
    pred, succ = (rank - 1) % size, (rank + 1) % size
    for t in range(size - 1):
        yield Step(Op.SEND, peer=succ, chunk=(rank - t - 1) % size)
        yield Step(Op.RECV_REDUCE, peer=pred, chunk=(rank - t - 2) % size)


def allgather(rank: int, size: int) -> Iterator[Step]:
    """Starting from chunk `rank` on `rank`, leave every chunk on every rank."""
    pred, succ = (rank - 1) % size, (rank + 1) % size
    for t in range(size - 1):
        yield Step(Op.SEND, peer=succ, chunk=(rank - t) % size)
        yield Step(Op.RECV, peer=pred, chunk=(rank - t - 1) % size)


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Reduce-scatter, then allgather the reduced chunks."""
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)


def broadcast(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """Pass the chunk on from root to root+1, root+2, ..., root-1."""
    return rooted(_away_from_0, rank, size, root)


def reduce(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """Pass the growing sum on from root-1 to root-2, ..., root+1, root."""
    return rooted(_towards_0, rank, size, root)


def _away_from_0(rank: int, size: int) -> Iterator[Step]:
    if rank > 0:
        yield Step(Op.RECV, rank - 1, 0)
    if rank < size - 1:
        yield Step(Op.SEND, rank + 1, 0)


def _towards_0(rank: int, size: int) -> Iterator[Step]:
    if rank < size - 1:
        yield Step(Op.RECV_REDUCE, rank + 1, 0)
    if rank > 0:
        yield Step(Op.SEND, rank - 1, 0)
