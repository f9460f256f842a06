"""Judge a schedule: what its verb promises, and exactly where it is not kept.

A collective is a precondition and a postcondition, one line per verb in `CONDITIONS`: where a
chunk starts with its rank's contribution, and where it must end with the *final value*, which is
every contribution exactly once.  `symbolic` runs the schedule in between and finds deadlocks,
stray or mismatched messages, contributions added twice, and RECVs of anything but the final value.
"""

from collections.abc import Sequence

from collectives import schedules
from collectives.step import Op, Step
from collectives.symbolic import (
    ACTIONS,
    Outcome,
    ScheduleError,
    Table,
    Value,
    contribution,
    final,
    got_want,
    run,
    show,
)

__all__ = ["ACTIONS", "CONDITIONS", "Outcome", "ScheduleError", "Value", "check",
           "check_algorithm", "contribution", "run"]


def _everywhere(rank: int, chunk: int, root: int) -> bool:
    return True


def _on_owner(rank: int, chunk: int, root: int) -> bool:
    return rank == chunk


def _on_root(rank: int, chunk: int, root: int) -> bool:
    return rank == root


# verb: (where a chunk starts with a contribution, where it must end with the final value)
CONDITIONS = {
    "allreduce": (_everywhere, _everywhere),
    "reduce_scatter": (_everywhere, _on_owner),
    "allgather": (_on_owner, _everywhere),
    "broadcast": (_on_root, _everywhere),
    "reduce": (_everywhere, _on_root),
}


def check_algorithm(verb: str, algorithm: str, size: int, root: int = 0) -> Outcome:
    """`check` the registered schedule."""
    table = [schedules.generate(verb, algorithm, rank, size, root) for rank in range(size)]
    return check(verb, table, schedules.num_chunks(verb, algorithm, size), root)


def check(verb: str, table: Table, num_chunks: int, root: int = 0) -> Outcome:
    """Run `table` from the precondition of `verb`, and compare with its postcondition.

    Raises
    ------
    ScheduleError
        As `run`, or if a rank ends with another value than the verb promises, or two ranks with
        values that were combined in different orders.
    """
    if verb not in CONDITIONS:
        raise ValueError(f"unknown verb {verb!r}; there are {', '.join(CONDITIONS)}")
    starts, ends = CONDITIONS[verb]
    ranks = range(len(table))
    state = [[contribution(rank) if starts(rank, chunk, root) else None
              for chunk in range(num_chunks)] for rank in ranks]
    outcome = run(table, state)
    for chunk, want in enumerate(final(state)):
        holders = [rank for rank in ranks if ends(rank, chunk, root)]
        for rank in holders:
            _check_end(rank, chunk, table[rank], outcome.state[rank][chunk], want)
        one_of_each = {outcome.state[rank][chunk]: rank for rank in holders}
        if len(one_of_each) > 1:
            raise ScheduleError(f"ranks {sorted(one_of_each.values())} combined chunk {chunk} in "
                                "different orders: their bits differ")
    return outcome


def _check_end(rank: int, chunk: int, steps: Sequence[Step], value: Value, want: int) -> None:
    got = value.ranks if value else 0
    if got != want:
        raise ScheduleError(f"rank {rank} chunk {chunk} at the end, "
                            f"{_last_received(steps, chunk)}: {got_want(got, want)}")


def _last_received(steps: Sequence[Step], chunk: int) -> str:
    """The step that a wrong value came with."""
    for at in reversed(range(len(steps))):
        step = steps[at]
        if step.op is not Op.SEND and step.chunk <= chunk < step.chunk + step.count:
            return f"last received in step {at}, {show(step)}"
    return "never received"
