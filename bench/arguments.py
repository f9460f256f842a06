"""The command line of the collectives' bench, and the types of arguments that others share."""

import argparse
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from collective import PLACES, REDUCE
from report import read_json

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
BASELINES = ("mpi", "gloo", "torch")
PICTURES = (".png", ".svg", ".pdf")


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


def positive(text: str) -> float:
    """Argument type: a number above 0."""
    value = float(text)
    if not 0 < value < np.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def names(text: str) -> list[str]:
    """A comma-separated list; "none" is the empty one."""
    return [] if text == "none" else [name for name in text.split(",") if name]


def rows(text: str) -> list[dict]:
    """The rows of an earlier run, read before this one may overwrite them."""
    try:
        return read_json(text)
    except (OSError, ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: no rows of this bench: {error}") from None


def picture(text: str) -> str:
    """A file to plot to; whether that will work is found out before hours of measuring."""
    if Path(text).suffix not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text}: expected a name that ends in one of {PICTURES}")
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("needs matplotlib: pip install '.[bench]'")
    return text


def parse(argv: Sequence[str] | None = None, description: str = "") -> argparse.Namespace:
    """The command line of allreduce.py."""
    p = argparse.ArgumentParser(description=description,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--collective", choices=list(PLACES), default="allreduce")
    p.add_argument("-b", "--minbytes", type=parse_nbytes, default="8", help="first size")
    p.add_argument("-e", "--maxbytes", type=parse_nbytes, default="64M", help="last size")
    p.add_argument("-f", "--factor", type=at_least(2), default=4, help="from one size to the next")
    p.add_argument("-n", "--iters", type=at_least(1), help="samples (by default 10 to 200)")
    p.add_argument("-w", "--warmup", type=at_least(0), default=2,
                   help="samples at the start of a turn (timing.py) that do not count")
    p.add_argument("-d", "--dtype", type=parse_dtype, default="float32",
                   help="a NumPy number type, or bfloat16")
    p.add_argument("-o", "--op", choices=list(REDUCE), default="sum")
    p.add_argument("--algorithms", type=names, default="auto",
                   help="ours, comma-separated; tree is short for binomial_tree")
    p.add_argument("--compression", nargs="+", default=["none"], metavar="CODEC",
                   help="allreduce: each of ours with each of these: none, int8, topk:0.01, ...")
    p.add_argument("--feedback", action="store_true",
                   help="with a codec, keep what it drops in a residual")
    p.add_argument("--baselines", type=names, default="mpi",
                   help=f"none or some of {','.join(BASELINES)} (torch: gloo with DDP's hooks)")
    where = p.add_mutually_exclusive_group()
    where.add_argument("--in-place", dest="places", action="store_const", const=(True,))
    where.add_argument("--out-of-place", dest="places", action="store_const", const=(False,))
    p.add_argument("--rotate", type=at_least(1), metavar="SLOTS",
                   help="buffers to rotate over; 1: always the same one, freshly written "
                        "(by default, as many as fill twice the last-level cache)")
    p.add_argument("--json", metavar="FILE", help="write the rows there too")
    p.add_argument("--plot", type=picture, metavar="FILE", help="draw the rows there (.png, ...)")
    p.add_argument("--compare", type=rows, metavar="OLD.json",
                   help="fail if one of our rows is slower than in this earlier --json")
    p.add_argument("--threshold", type=positive, default=1.1,
                   help="how many times as long is slower (default 1.1)")
    p.add_argument("--min-ratio", type=positive, metavar="R",
                   help="fail if the best baseline's time over ours is below R (geometric mean)")
    p.set_defaults(places=(False, True))
    return checked(p, p.parse_args(argv))


def checked(p: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, if they go together."""
    if unknown := set(args.baselines) - set(BASELINES):
        p.error(f"--baselines {','.join(unknown)}: expected none or {','.join(BASELINES)}")
    if args.collective != "allreduce" and args.compression != ["none"]:
        p.error("--compression: the bench has checks of lossy results for allreduce only")
    if args.min_ratio and not args.baselines:
        p.error("--min-ratio: needs --baselines")
    possible = PLACES[args.collective]
    args.places = tuple(place for place in args.places if place in possible)
    if not args.places:
        p.error(f"{args.collective} is always {'in' if True in possible else 'out of'} place")
    return args
