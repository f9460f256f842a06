"""Time all-reduce and its relatives, ours and others', as nccl-tests does; check every result.

    mpirun -n 4 python bench/allreduce.py -b 8 -e 64M -f 4 --algorithms ring,tree
    mpirun -n 4 python bench/allreduce.py --collective allgather --baselines mpi,gloo --plot a.png

Time is the median over iterations, each the time of its slowest rank (timing.py); bandwidths are
defined in bandwidth.py, inputs and sizes of each collective in collective.py, buffers in
buffers.py, checks of lossy calls in compressed.py, and all of it again in README.md.
The exit status is 1 if any element of any result was wrong, if --compare finds one of our rows
slower than before, or --min-ratio a baseline too fast.

    mpirun -n 4 python bench/allreduce.py -b 64K --algorithms ring --compression none int8 topk:0.01

size, algbw and busbw are those of the tensor, whatever is sent.  wire(B) is what a rank sends in
one call: with a codec, what is left of the bytes that it would send without (`logical_nbytes` in
the JSON).
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import baselines
import compare
import numpy as np
from arguments import parse
from collective import exchange
from contenders import Contender, Unavailable, ours, refusal
from facts import facts
from measure import counts, measure
from mpi4py import MPI
from report import comparison, heading, line, write_json


def contenders_of(args: argparse.Namespace, comm: MPI.Comm, say, stack: ExitStack
                  ) -> list[Contender]:
    """What the command line asks for.  A baseline that cannot is left out; ours must."""
    mine = [ours(name, args.op, codec, args.feedback, args.collective)
            for name in args.algorithms for codec in args.compression]
    for contender in mine:
        if reason := refusal(contender, *small(args, comm)):
            say(f"{contender.name}: {reason}", file=sys.stderr)
            raise SystemExit(2)
    able = []
    for name in args.baselines:
        try:
            theirs = baselines.make(name, comm, args.op, args.collective, args.dtype, stack)
        except Unavailable as reason:
            say(f"# without {name}: {reason}")
            continue
        for contender in theirs:
            if reason := refusal(contender, *small(args, comm)):
                say(f"# without {name}: {reason}")
            else:
                able.append(contender)
    return able + mine


def small(args: argparse.Namespace, comm: MPI.Comm) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of an element per rank."""
    in_place = args.places[0]
    part = exchange(args.collective, args.op, args.dtype, comm.rank, comm.size, comm.size, in_place)
    send = part.given.copy()
    return send, send if in_place else np.zeros_like(part.wanted)


def run(args: argparse.Namespace, comm: MPI.Comm, contenders: Sequence[Contender], say) -> int:
    """Measure all sizes and print the table.  Returns the exit status."""
    say(f"# {args.collective}")
    say(heading())
    rows = []
    for count in counts(args, comm.size):
        for in_place in args.places:
            for row in measure(comm, contenders, args, count, in_place):
                rows.append(row)
                say(line(row))
    theirs = {c.name for c in contenders if c.baseline}
    for text in comparison(rows, theirs):
        say(text)
    wrong = sum(row["wrong"] for row in rows)
    say(f"# wrong values: {wrong}")
    if comm.rank == 0:
        keep(args, rows)
    failed = verdict(args, rows, theirs, say)
    comm.Barrier()  # all is printed before a rank that exits with 1 ends the job
    return 1 if wrong or failed else 0


def keep(args: argparse.Namespace, rows: list[dict]) -> None:
    """Write the files that were asked for."""
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        from plot import save
        save(rows, args.plot)


def verdict(args: argparse.Namespace, rows: list[dict], theirs: set[str], say) -> bool:
    """True if the run is too slow for what was asked, by the same rows on every rank."""
    results = []
    if args.compare is not None:
        results.append(compare.slower(rows, args.compare, args.threshold, theirs))
    if args.min_ratio:
        results.append(compare.below(rows, args.min_ratio, theirs))
    for text in (text for lines, _ in results for text in lines):
        say(f"# {text}")
    return any(failed for _, failed in results)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, on all ranks; rank 0 prints."""
    comm = MPI.COMM_WORLD
    args = parse(argv, __doc__)

    def say(text: str, file=None) -> None:
        if comm.rank == 0:
            print(text, file=file, flush=True)

    for fact in facts(comm):
        say(f"# {fact}")
    with ExitStack() as stack:
        return run(args, comm, contenders_of(args, comm, say, stack), say)


if __name__ == "__main__":
    sys.exit(main())
