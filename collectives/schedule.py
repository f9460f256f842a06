"""Print a schedule as a table, after verifying it.

    python -m collectives.schedule ring 4 --verb allreduce

One column per rank, one row per step, read downwards:

    send 3 -> 1      send chunk 3 to rank 1
    recv 4-7 <- 2    overwrite chunks 4 to 7 with what rank 2 sent
    recv+ 2 <- 3     combine chunk 2 with what rank 3 sent

The last rows are what each rank sends and reduces, as fractions of the message.
"""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from itertools import zip_longest

from collectives import schedules
from collectives.step import Op, Step
from collectives.verify import check

# How a step reads; tests/test_ops_exhaustive.py wants every Op here.
CELLS = {Op.SEND: "send {span} -> {peer}", Op.RECV: "recv {span} <- {peer}",
         Op.RECV_REDUCE: "recv+ {span} <- {peer}"}


def amount(steps: Sequence[Step], op: Op, num_chunks: int) -> Fraction:
    """How much of the message the steps of kind `op` move.

    >>> amount([Step(Op.SEND, 1, 0), Step(Op.SEND, 1, 2)], Op.SEND, 4)
    Fraction(1, 2)
    """
    return Fraction(sum(step.count for step in steps if step.op is op), num_chunks)


def cell(step: Step | None) -> str:
    """One step in words; nothing for a rank that has ended."""
    if step is None:
        return ""
    last = step.chunk + step.count - 1
    span = f"{step.chunk}" if step.count == 1 else f"{step.chunk}-{last}"
    return CELLS[step.op].format(span=span, peer=step.peer)


def text_table(table: Sequence[Sequence[Step]], num_chunks: int) -> str:
    """Steps downwards, ranks across; then what each rank sends and reduces."""
    rows = [["step", *(f"rank {rank}" for rank in range(len(table)))]]
    for at, steps in enumerate(zip_longest(*table)):
        rows.append([str(at), *map(cell, steps)])
    for name, op in (("sent", Op.SEND), ("reduced", Op.RECV_REDUCE)):
        rows.append([name, *(str(amount(steps, op, num_chunks)) for steps in table)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def describe(verb: str, algorithm: str, size: int, root: int = 0) -> str:
    """The table of a registered schedule and what it costs.

    Raises
    ------
    ValueError
        If there is no such schedule; ScheduleError if it is wrong.
    """
    chunks = schedules.num_chunks(verb, algorithm, size)
    table = [schedules.generate(verb, algorithm, rank, size, root) for rank in range(size)]
    rounds = check(verb, table, chunks, root).rounds
    sent, reduced = (max(amount(steps, op, chunks) for steps in table)
                     for op in (Op.SEND, Op.RECV_REDUCE))
    return (f"{algorithm} {verb}, {size} ranks, {chunks} chunks\n\n"
            f"{text_table(table, chunks)}\n\n"
            f"rounds            {rounds}\n"
            f"bytes per rank    at most {sent} of the message sent, {reduced} reduced\n"
            "verified          every contribution exactly once; no deadlock, eager or rendezvous\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m collectives.schedule", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", help=", ".join(schedules.algorithms("allreduce")))
    parser.add_argument("size", type=int, help="number of ranks")
    parser.add_argument("--verb", choices=schedules.VERBS, default="allreduce")
    parser.add_argument("--root", type=int, default=0, help="for broadcast and reduce")
    options = parser.parse_args(arguments)
    try:
        text = describe(options.verb, options.algorithm, options.size, options.root)
    except ValueError as error:
        parser.error(str(error))
    print(text, end="")


if __name__ == "__main__":
    main()
