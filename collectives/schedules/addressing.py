"""Rank arithmetic that schedules share: subgroups, a moved root, and folding to a power of two.

A generator numbers its ranks 0 .. size-1 and its chunks from 0.  `on` re-addresses its steps to
the ranks and chunks that they are meant for; `rooted` does so for a generator written for root 0.

Algorithms that halve and double want a power of two of ranks.  `Fold` gives it to them: the first
2 * extra ranks form pairs, and the odd rank of a pair hands its data to the even one, its leader,
which speaks for both.  Neighbours are paired so that the chunks of one core rank, and of any run
of core ranks, are contiguous.

    size 6          rank        0  1     2  3     4     5
                    core rank     0        1      2     3       core_size 4, extra 2
                    leader      0        2        4     5

Source of the folding: Thakur, Rabenseifner & Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from collectives.step import Op, Step

Span = tuple[int, int]  # first chunk, number of chunks


def on(
    steps: Iterable[Step], peer: Callable[[int], int], base: int = 0, scale: int = 1
) -> Iterator[Step]:
    """Re-address `steps` to a subgroup: rank q -> peer(q), chunk c -> base + scale * c."""
    for s in steps:
        yield Step(s.op, peer(s.peer), base + scale * s.chunk, scale * s.count)


def rooted(
    generator: Callable[[int, int], Iterator[Step]], rank: int, size: int, root: int
) -> Iterator[Step]:
    """Run `generator(rank, size)`, written for root 0, with the ranks turned so that root is 0."""
    return on(generator((rank - root) % size, size), lambda q: (q + root) % size)


class Fold(NamedTuple):
    """`size` ranks seen as a power of two of core ranks; see the picture above."""

    size: int

    @property
    def core_size(self) -> int:
        """The largest power of two that is not above `size`."""
        return 1 << (self.size.bit_length() - 1)

    @property
    def extra(self) -> int:
        """How many core ranks speak for two ranks."""
        return self.size - self.core_size

    def is_paired(self, rank: int) -> bool:
        """True if `rank` shares a core rank with the rank beside it, rank ^ 1."""
        return rank < 2 * self.extra

    def core_rank(self, rank: int) -> int:
        """The core rank that `rank` is, or is part of."""
        return rank // 2 if self.is_paired(rank) else rank - self.extra

    def leader(self, core_rank: int) -> int:
        """The rank that acts for `core_rank`; also the first of its chunks, where ranks own one."""
        return core_rank + min(core_rank, self.extra)

    def widen(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Turn steps between core ranks, a chunk each, into steps on the chunks of their ranks."""
        for s in steps:
            first, end = self.leader(s.chunk), self.leader(s.chunk + s.count)
            yield Step(s.op, self.leader(s.peer), first, end - first)

    def around(
        self,
        rank: int,
        core_steps: Iterable[Step],
        hand_in: tuple[Op, Span] | None = None,
        hand_back: Span | None = None,
    ) -> Iterator[Step]:
        """`core_steps` for a leader; before and after them, its exchange with its odd neighbour.

        Parameters
        ----------
        hand_in : how the leader receives (RECV or RECV_REDUCE), and the chunks that it is given
        hand_back : the chunks, by then final, that it returns
        """
        partner, paired = rank ^ 1, self.is_paired(rank)
        odd_one = paired and rank % 2 == 1
        if paired and hand_in:
            op, span = hand_in
            yield Step(Op.SEND if odd_one else op, partner, *span)
        if not odd_one:
            yield from core_steps
        if paired and hand_back:
            yield Step(Op.RECV if odd_one else Op.SEND, partner, *hand_back)
