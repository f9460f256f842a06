"""Run a schedule on symbols instead of numbers: the machine that `verify` judges with.

A chunk's value is a multiset of origin ranks: who has contributed, and how often.  Adding one rank
twice is the commonest schedule bug, and it is an error at the very step that does it; so between
steps no multiplicity is above one, and an int with bit r set for rank r holds the multiset
exactly.  Beside it a value carries a hash of the order in which it was combined, in which a + b and
b + a are the same: two ranks that combined a chunk in different orders hold different bits.

The *final value* of a chunk is all that the ranks started with, once each.  A RECV carries nothing
less (so that an executor can tell what is final), a RECV_REDUCE anything; a chunk is received as
the chunk that it was sent as.

Messages from one source to one destination arrive in order (MPI's non-overtaking rule).  A chunk
that is being sent may not be overwritten or combined into until the send is complete.  When that
is depends on the MPI library, so every schedule is run in both extremes:

    eager         a send is complete at once: the library has buffered it
    rendezvous    a send is complete when its receiver has landed it.  A RECV_REDUCE lands in
                  scratch, as soon as its rank reaches it; a RECV lands in place, so it must wait
                  for the rank's own sends of these chunks.

Two ranks that SEND each other a chunk, then RECV into it, deadlock in the second model only; with
RECV_REDUCE they do not.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from collectives.step import Op, Step

Table = Sequence[Sequence[Step]]


class ScheduleError(ValueError):
    """A schedule deadlocks, leaves a message unread, or computes something else."""


class Value(NamedTuple):
    """What a chunk holds; None stands for nothing yet."""

    ranks: int  # bit r is set: rank r has contributed
    order: int  # hash of the expression that made it

    def __add__(self, other: "Value") -> "Value":
        low, high = sorted((self.order, other.order))
        return Value(self.ranks | other.ranks, hash((low, high)))


class Outcome(NamedTuple):
    """What a schedule that ran to its end leaves."""

    state: list[list[Value | None]]  # [rank][chunk]
    rounds: int  # messages on the longest chain in which each one waits for the last


def contribution(rank: int) -> Value:
    """The value that `rank` starts with."""
    return Value(1 << rank, hash((rank,)))


def run(table: Table, state: list[list[Value | None]]) -> Outcome:
    """Execute `table[rank]` from `state[rank][chunk]`, which is left as it is, in both models.

    Raises
    ------
    ScheduleError
        If a step addresses a rank or a chunk that is not there, sends what it does not have, adds
        a contribution twice, or receives a message that is not the one it expects; if no rank can
        make progress; or if a message is never received.
    """
    for rank, steps in enumerate(table):
        for at, step in enumerate(steps):
            _check_address(rank, at, step, len(table), len(state[rank]))
    outcome = _Machine(table, state, rendezvous=False).run()
    _Machine(table, state, rendezvous=True).run()
    return outcome


class _Machine:
    """All ranks in one of the two models: where they are, what they hold, what is in flight."""

    def __init__(self, table: Table, state: list[list[Value | None]], rendezvous: bool):
        self.table, self.rendezvous = table, rendezvous
        self.state = [list(values) for values in state]
        self.final = final(state)
        self.at = [0] * len(table)
        self.round = [0] * len(table)                       # of the last message received
        self.mail = defaultdict(deque)                      # (source, dest): (Step, values, round)
        self.sending = [[0] * len(row) for row in state]    # sends in flight, [rank][chunk]
        self.landed: list[list[Value] | None] = [None] * len(table)  # in scratch, not yet combined
        self.moved = False

    def run(self) -> Outcome:
        self.moved = True
        while self.moved:
            self.moved = False
            for rank, steps in enumerate(self.table):
                while self.at[rank] < len(steps):
                    step = steps[self.at[rank]]
                    if not ACTIONS[step.op](self, rank, step):
                        break
                    self.at[rank] += 1
                    self.moved = True
        self._check_all_done()
        return Outcome(self.state, max(self.round, default=0))

    def _send(self, rank: int, step: Step) -> bool:
        values = self.state[rank][step.chunk : step.chunk + step.count]
        if None in values:
            raise self._error(rank, step.chunk + values.index(None), "sends it before it has it")
        self.mail[rank, step.peer].append((step, values, self.round[rank] + 1))
        if self.rendezvous:
            self._count_sends(rank, step, +1)
        return True

    def _recv(self, rank: int, step: Step) -> bool:
        if self._still_sending(rank, step) or not self.mail[step.peer, rank]:
            return False
        values = self._take(rank, step)
        for chunk, value in enumerate(values, step.chunk):
            if value.ranks != self.final[chunk]:
                raise self._error(
                    rank, chunk, "RECV of a value that is not final: "
                    + got_want(value.ranks, self.final[chunk]))
        self.state[rank][step.chunk : step.chunk + step.count] = values
        return True

    def _recv_reduce(self, rank: int, step: Step) -> bool:
        if self.landed[rank] is None:
            if not self.mail[step.peer, rank]:
                return False
            self.landed[rank] = self._take(rank, step)
        if self._still_sending(rank, step):
            return False
        for chunk, value in enumerate(self.landed[rank], step.chunk):
            self.state[rank][chunk] = self._combine(rank, chunk, value)
        self.landed[rank] = None
        return True

    def _combine(self, rank: int, chunk: int, value: Value) -> Value:
        mine = self.state[rank][chunk]
        if mine is None:
            raise self._error(rank, chunk, "combines into it before it has it")
        if mine.ranks & value.ranks:
            raise self._error(rank, chunk, "contributed twice: "
                              + got_want(mine.ranks, self.final[chunk], value.ranks))
        return mine + value

    def _take(self, rank: int, step: Step) -> list[Value]:
        """The next message from `step.peer`, whose send is thereby complete."""
        sent, values, round_ = self.mail[step.peer, rank].popleft()
        if sent.count != step.count:
            raise self._error(rank, step.chunk, f"expects {step.count} chunks from rank "
                              f"{step.peer}, got {sent.count}")
        if sent.chunk != step.chunk:
            raise self._error(rank, step.chunk, f"got chunk {sent.chunk} from rank {step.peer}, "
                              f"want chunk {step.chunk}")
        if self.rendezvous:
            self._count_sends(step.peer, sent, -1)
        self.round[rank] = max(self.round[rank], round_)
        self.moved = True
        return values

    def _count_sends(self, rank: int, step: Step, by: int) -> None:
        for chunk in range(step.chunk, step.chunk + step.count):
            self.sending[rank][chunk] += by

    def _still_sending(self, rank: int, step: Step) -> bool:
        return any(self.sending[rank][step.chunk : step.chunk + step.count])

    def _check_all_done(self) -> None:
        stuck = [f"rank {rank} step {at}: {show(self.table[rank][at])}"
                 for rank, at in enumerate(self.at) if at < len(self.table[rank])]
        if stuck:
            when = " when every send is a rendezvous" if self.rendezvous else ""
            raise ScheduleError(f"deadlock{when}:\n  " + "\n  ".join(stuck))
        unread = [f"{len(queue)} from rank {source} to rank {dest}, the first {show(queue[0][0])}"
                  for (source, dest), queue in self.mail.items() if queue]
        if unread:
            raise ScheduleError("messages never received:\n  " + "\n  ".join(unread))

    def _error(self, rank: int, chunk: int, what: str) -> ScheduleError:
        at = self.at[rank]
        return ScheduleError(
            f"rank {rank} step {at}, {show(self.table[rank][at])}: chunk {chunk}: {what}")


# What the machine does for each Op, returning False if the step has to wait.
# tests/test_ops_exhaustive.py wants every Op here.
ACTIONS = {
    Op.SEND: _Machine._send,
    Op.RECV: _Machine._recv,
    Op.RECV_REDUCE: _Machine._recv_reduce,
}


def _check_address(rank: int, at: int, step: Step, size: int, num_chunks: int) -> None:
    wrong = None
    if step.op not in ACTIONS:
        wrong = f"unknown op; there are {', '.join(op.name for op in ACTIONS)}"
    elif not 0 <= step.peer < size:
        wrong = f"peer {step.peer} is not in 0 .. {size - 1}"
    elif step.peer == rank:
        wrong = "message to itself"
    elif step.count < 1 or step.chunk < 0 or step.chunk + step.count > num_chunks:
        wrong = f"{step.count} chunks from {step.chunk} are not within 0 .. {num_chunks - 1}"
    if wrong:
        raise ScheduleError(f"rank {rank} step {at}, {show(step)}: {wrong}")


def final(state: list[list[Value | None]]) -> list[int]:
    """Per chunk, who contributes to it: `Value.ranks` of its final value."""
    return [reduce(or_, (value.ranks for value in values if value), 0)
            for values in zip(*state, strict=True)]


def got_want(got: int, want: int, more: int = 0) -> str:
    """Multisets {rank: times}; `more` is added to `got`."""
    return f"got {dict(_bits(got) + _bits(more))}, want {dict(_bits(want))}"


def _bits(ranks: int) -> Counter:
    return Counter(rank for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def show(step: Step) -> str:
    op = getattr(step.op, "name", step.op)
    return f"{op}(peer={step.peer}, chunk={step.chunk}, count={step.count})"
