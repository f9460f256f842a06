"""Time allreduce, ours and others', as nccl-tests does, and check every result.

    mpirun -n 4 python bench/allreduce.py -b 8 -e 64M -f 4 --algorithms ring,tree

Time is the median over iterations, each the time of its slowest rank (timing.py); bandwidths are
defined in bandwidth.py, inputs and checks in buffers.py, those of lossy calls in compressed.py.
The exit status is 1 if any element of any result was wrong.

    mpirun -n 4 python bench/allreduce.py -b 64K --algorithms ring --compression none int8 topk:0.01

size, algbw and busbw are those of the tensor, whatever is sent.  wire(B) is what a rank sends in
one call: with a codec, what is left of the bytes that it would send without (`logical_nbytes` in
the JSON).
"""

import argparse
import re
import sys
from collections.abc import Sequence

import numpy as np
from bandwidth import algbw_GBps, busbw_GBps
from buffers import REDUCE, Pool, inputs
from compressed import broken, sent_nbytes, slack
from contenders import BASELINES, Contender, ours, refusal
from mpi4py import MPI
from report import comparison, facts, heading, line, write_json
from timing import default_iterations, interleave

import collectives

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_nbytes(text: str) -> int:
    """8, 32K, 1M, 2G: the suffixes are powers of 1024, as in nccl-tests."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 8, 32K, 1M or 2G")
    return int(match[1]) * UNITS[match[2]]


def parse_dtype(text: str) -> np.dtype:
    """A NumPy number type, or bfloat16 where ml_dtypes is installed."""
    try:
        if text == "bfloat16":
            import ml_dtypes
            return np.dtype(ml_dtypes.bfloat16)
        dtype = np.dtype(text)
    except (ImportError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if dtype.kind not in "iufc":
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number type such as float32")
    return dtype


def at_least(low: int):
    """Argument type: an int that is not below `low`."""
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value}: expected {low} or more")
        return value
    return parse


def names(text: str) -> list[str]:
    """A comma-separated list; "none" is the empty one."""
    return [] if text == "none" else [name for name in text.split(",") if name]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-b", "--minbytes", type=parse_nbytes, default="8", help="first size")
    p.add_argument("-e", "--maxbytes", type=parse_nbytes, default="64M", help="last size")
    p.add_argument("-f", "--factor", type=at_least(2), default=4, help="from one size to the next")
    p.add_argument("-n", "--iters", type=at_least(1), help="samples (by default 10 to 200)")
    p.add_argument("-w", "--warmup", type=at_least(0), default=2, help="samples that do not count")
    p.add_argument("-d", "--dtype", type=parse_dtype, default="float32",
                   help="a NumPy number type, or bfloat16")
    p.add_argument("-o", "--op", choices=list(REDUCE), default="sum")
    p.add_argument("--algorithms", type=names, default="auto",
                   help="ours, comma-separated; tree is short for binomial_tree")
    p.add_argument("--compression", nargs="+", default=["none"], metavar="CODEC",
                   help="each of ours with each of these: none, int8, topk:0.01, ...")
    p.add_argument("--feedback", action="store_true",
                   help="with a codec, keep what it drops in a residual")
    p.add_argument("--baselines", type=names, default="mpi", help=f"none or {','.join(BASELINES)}")
    where = p.add_mutually_exclusive_group()
    where.add_argument("--in-place", dest="places", action="store_const", const=(True,))
    where.add_argument("--out-of-place", dest="places", action="store_const", const=(False,))
    p.add_argument("--rotate", type=at_least(1), metavar="SLOTS",
                   help="buffers to rotate over; 1: always the same one, freshly written "
                        "(by default, as many as fill twice the last-level cache)")
    p.add_argument("--json", metavar="FILE", help="write the rows there too")
    p.set_defaults(places=(False, True))
    args = p.parse_args(argv)
    unknown = set(args.baselines) - set(BASELINES)
    if unknown:
        p.error(f"--baselines {','.join(unknown)}: expected none or {','.join(BASELINES)}")
    return args


def counts(args: argparse.Namespace) -> list[int]:
    """Element counts from the first size to the last; each once."""
    found, nbytes = {}, args.minbytes
    while nbytes <= args.maxbytes:
        found[max(1, nbytes // args.dtype.itemsize)] = None
        nbytes *= args.factor
    return list(found)


def measure(comm: MPI.Comm, contenders: Sequence[Contender], args: argparse.Namespace,
            count: int, in_place: bool) -> list[dict]:
    """One row per contender.  Collective; the rows are the same on all ranks."""
    slacks = [slack(c.codec, c.feedback, comm.size, largest(args, comm)) if c.codec else 0.0
              for c in contenders]
    pool = Pool(comm, count, args.dtype, args.op, in_place, slacks, args.rotate)
    traffic = [traffic_of(comm, c, pool.input, args.op) for c in contenders]
    pool.wrong += [check_laws(comm, c, pool.input, args.op) for c in contenders]

    def prepare(k: int) -> tuple[np.ndarray, np.ndarray]:
        buffers = pool.take(k)
        if contenders[k].prepare:
            contenders[k].prepare()
        return buffers

    nbytes = count * args.dtype.itemsize
    iterations = args.iters or default_iterations(nbytes)
    times_s = interleave(comm, [c.call for c in contenders], prepare, iterations, args.warmup)
    pool.check()
    comm.Allreduce(MPI.IN_PLACE, pool.wrong, MPI.SUM)
    common = {"nbytes": nbytes, "count": count, "dtype": args.dtype.name, "op": args.op,
              "ranks": comm.size, "in_place": in_place}
    return [common | figures(contender, nbytes, comm.size, samples_s) | sent
            | {"wrong": int(wrong)} for contender, samples_s, sent, wrong
            in zip(contenders, times_s, traffic, pool.wrong, strict=True)]


def largest(args: argparse.Namespace, comm: MPI.Comm) -> float:
    """The largest element of the result, before the division of a mean."""
    return float(np.abs(inputs(args.op, args.dtype, comm.size)).sum(axis=0).max())


def traffic_of(comm: MPI.Comm, contender: Contender, given: np.ndarray, op: str) -> dict:
    """Bytes that a rank sends in one call, and would send without a codec; None if unknown."""
    if contender.algorithm in (None, "native"):
        return {"wire_nbytes": None, "logical_nbytes": None}
    wire, logical = (
        sent_nbytes(comm, ours(contender.algorithm, op, codec).call, given.copy())
        for codec in (contender.compression, "none"))
    return {"wire_nbytes": wire, "logical_nbytes": logical}


def check_laws(comm: MPI.Comm, contender: Contender, given: np.ndarray, op: str) -> int:
    """Elements of a lossy result that break a law, on this rank."""
    if contender.codec is None:
        return 0
    return broken(comm, lambda x, residual: collectives.allreduce(
        x, op, compression=contender.codec, residual=residual, algorithm=contender.name),
        given, op == "mean")


def figures(contender: Contender, nbytes: int, size: int, samples_s: np.ndarray) -> dict:
    """What a row says about the contender's times."""
    median_s = float(np.median(samples_s))
    return {"algorithm": contender.name, "compression": contender.compression,
            "time_us": median_s * 1e6,
            "time_min_us": float(samples_s.min()) * 1e6,
            "time_max_us": float(samples_s.max()) * 1e6,
            "algbw": algbw_GBps(nbytes, median_s),
            "busbw": busbw_GBps("allreduce", nbytes, median_s, size)}


def contenders_of(args: argparse.Namespace, comm: MPI.Comm, say) -> list[Contender]:
    """What the command line asks for.  A baseline that cannot is left out; ours must."""
    mine = [ours(name, args.op, codec, args.feedback)
            for name in args.algorithms for codec in args.compression]
    for contender in mine:
        if reason := refusal(contender, args.dtype):
            say(f"{contender.name}: {reason}", file=sys.stderr)
            raise SystemExit(2)
    theirs = [BASELINES[name](comm, args.op) for name in args.baselines]
    able = []
    for contender in theirs:
        if reason := refusal(contender, args.dtype):
            say(f"# without {contender.name}: {reason}")
        else:
            able.append(contender)
    return able + mine


def run(args: argparse.Namespace, comm: MPI.Comm, contenders: Sequence[Contender], say) -> int:
    """Measure all sizes and print the table.  Returns the exit status."""
    say(heading())
    rows = []
    for count in counts(args):
        for in_place in args.places:
            for row in measure(comm, contenders, args, count, in_place):
                rows.append(row)
                say(line(row))
    for text in comparison(rows, {c.name for c in contenders if c.baseline}):
        say(text)
    wrong = sum(row["wrong"] for row in rows)
    say(f"# wrong values: {wrong}")
    if args.json and comm.rank == 0:
        write_json(args.json, rows)
    comm.Barrier()  # all is printed before a rank that exits with 1 ends the job
    return 1 if wrong else 0


def main() -> int:
    """The command line, on all ranks; rank 0 prints."""
    comm = MPI.COMM_WORLD
    args = parse()

    def say(text: str, file=None) -> None:
        if comm.rank == 0:
            print(text, file=file, flush=True)

    for fact in facts(comm):
        say(f"# {fact}")
    return run(args, comm, contenders_of(args, comm, say), say)


if __name__ == "__main__":
    sys.exit(main())
