"""Time the codecs' kernels on one core against copying the same float32, and check every result.

    python bench/kernels.py --codecs int8,sign --verbs encode,decode_add --nbytes 64M

GB/s are of float32 input, whatever the wire: 4 bytes per element and call.  The ratio is the time
of copying the same float32 to another array over that of the verb, both medians of samples that
take turns; before each one the caches are filled with something else.

    verb                reads                        writes
    copy                x                            another x
    encode              x                            wire
    encode_residual     x, residual                  wire, residual
    decode_add          wire, acc                    acc
    fused               wire, x                      wire
    fused_residual      wire, x, residual            wire, residual

The exit status is 1 if any element of any result was wrong.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from arguments import at_least, names, parse_nbytes
from bandwidth import algbw_GBps
from buffers import cache_nbytes
from expressions import BASELINES
from mpi4py import MPI
from report import write_json
from timing import default_iterations, interleave

import collectives as coll

CODECS = ("float16,bfloat16,int8,int4,ternary,sign,topk:0.01,threshold:2.6,"
          "threshold:relative=2")
VERBS = ("encode", "encode_residual", "decode_add", "fused", "fused_residual")
HEADING = "codec                verb            by       time(us)     GB/s   ratio  #wrong"
ROW = "{codec:<20} {verb:<15} {by:<6} {time_us:>10.1f} {gbps:>8.2f} {memcpy_ratio:>7.2f} {wrong:>7}"


class Contender(NamedTuple):
    """A call to time; `prepare` restores what it overwrites, `wrong` counts its wrong elements."""

    verb: str
    by: str
    call: Callable[[], object]
    prepare: Callable[[], object]
    wrong: Callable[[], int]


class Arrays:
    """What the verbs of one codec read and write: gradients, and a residual a tenth of them."""

    def __init__(self, codec, n: int):
        rng = np.random.default_rng(n)
        self.codec, self.n = codec, n
        self.x, self.base = rng.standard_normal((2, n), dtype=np.float32)
        self.old = rng.standard_normal(n, dtype=np.float32) / np.float32(10)
        self.residual, self.acc, self.copy = (np.zeros(n, np.float32) for _ in range(3))
        self.incoming, self.wire = (np.zeros(codec.wire_nbytes(n), np.uint8) for _ in range(2))
        codec.encode(self.base, None, self.incoming)
        self.arrived = self.decoded(self.incoming)

    def decoded(self, wire):
        out = np.empty(self.n, np.float32)
        self.codec.decode(wire, out)
        return out

    def contenders(self, verbs: Sequence[str], baselines: Sequence[str]) -> list[Contender]:
        """Copying first, then our verbs, then the expressions of others."""
        found = [Contender("copy", "numpy", lambda: np.copyto(self.copy, self.x), lambda: None,
                           lambda: np.count_nonzero(self.copy != self.x))]
        found += [self._ours(verb) for verb in verbs]
        for by in baselines:
            pair = BASELINES[by](self.codec)
            if pair and self.n % getattr(self.codec, "block", 1) == 0:
                found += self._theirs(by, verbs, *pair)
        return found

    def _ours(self, verb: str) -> Contender:
        codec, fused, residual = self.codec, verb.startswith("fused"), None
        if verb == "decode_add":
            return Contender(verb, "ours", lambda: codec.decode_add(self.incoming, self.acc),
                             self._restore, self._wrong_sum)
        if verb.endswith("residual"):
            residual = self.residual
        if fused:
            def call():
                codec.decode_add_encode(self.incoming, self.x, residual, self.wire)
        else:
            def call():
                codec.encode(self.x, residual, self.wire)
        return Contender(verb, "ours", call, self._restore,
                         lambda: self._wrong_wire(fused, residual is not None))

    def _restore(self) -> None:
        self.residual[:], self.acc[:], self.wire[:] = self.old, self.x, 0xAA

    def _wrong_sum(self) -> int:
        return np.count_nonzero(self.acc != self.x + self.arrived)

    def _wrong_wire(self, fused: bool, feedback: bool) -> int:
        """Elements beyond the error bound, or, with a residual, of which something was lost."""
        v = self.x + self.arrived if fused else self.x.copy()
        v += self.old if feedback else 0
        out = self.decoded(self.wire).astype(np.float64)
        if not feedback:
            return np.count_nonzero(~(np.abs(out - v) <= self.codec.error_bound(v)))
        lost = np.abs(out + self.residual - v)  # v - out was rounded once
        return np.count_nonzero(~(lost <= np.spacing(np.abs(self.residual)) / 2))

    def _theirs(self, by: str, verbs: Sequence[str], encode, decode_add) -> list[Contender]:
        wires = [encode(self.x)]
        slack = np.abs(self.x).max() * 2.0**-20  # their scales are rounded otherwise

        def keep():
            wires[0] = encode(self.x)

        def wrong():
            out = np.zeros(self.n, np.float32)
            decode_add(wires[0], out)
            return np.count_nonzero(~(np.abs(out - self.x) <= self.codec.error_bound(self.x)
                                      + slack))

        def wrong_sum():
            added = self.acc.astype(np.float64) - self.x
            return np.count_nonzero(~(np.abs(added - self.x) <= self.codec.error_bound(self.x)
                                      + slack + np.spacing(np.abs(self.acc))))

        found = {"encode": Contender("encode", by, keep, lambda: None, wrong),
                 "decode_add": Contender("decode_add", by, lambda: decode_add(wires[0], self.acc),
                                         self._restore, wrong_sum)}
        return [found[verb] for verb in verbs if verb in found]


def measure(name: str, args: argparse.Namespace) -> list[dict]:
    """One row per verb, ours and others'."""
    codec, n = coll.as_codec(name), max(1, args.nbytes // 4)
    nbytes, forget = 4 * n, np.zeros(2 * cache_nbytes(), np.uint8)
    contenders = Arrays(codec, n).contenders(args.verbs, args.baselines)
    wrong = [0] * len(contenders)

    def prepare(k: int) -> tuple:
        contenders[k].prepare()
        forget[:] += 1
        return (k,)

    def call(k: int) -> None:
        contenders[k].call()

    iterations = args.iters or default_iterations(nbytes)
    times_s = interleave(MPI.COMM_SELF, [call] * len(contenders), prepare, iterations, args.warmup)
    for k, contender in enumerate(contenders):
        contender.prepare()
        contender.call()
        wrong[k] = int(contender.wrong())
    median_s = np.median(times_s, axis=1)
    return [{"codec": name, "verb": c.verb, "by": c.by, "nbytes": nbytes,
             "wire_nbytes": codec.wire_nbytes(n), "time_us": 1e6 * float(t),
             "gbps": algbw_GBps(nbytes, float(t)), "memcpy_ratio": float(median_s[0] / t),
             "wrong": w} for c, t, w in zip(contenders, median_s, wrong, strict=True)]


def codec_names(text: str) -> list[str]:
    """"int8,sign" or "int8:block=64,seed=1;sign": each names a codec."""
    found = text.split(";" if ";" in text else ",")
    for name in found:
        try:
            coll.as_codec(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--codecs", type=codec_names, default=CODECS,
                   help="as for compression=; a ; between them lets one have several parameters")
    p.add_argument("--verbs", type=names, default=",".join(VERBS))
    p.add_argument("--nbytes", type=parse_nbytes, default="64M", help="of float32 input")
    p.add_argument("--baselines", type=names, default=",".join(BASELINES),
                   help=f"none or {','.join(BASELINES)}")
    p.add_argument("-n", "--iters", type=at_least(1), help="samples (by default 10 to 200)")
    p.add_argument("-w", "--warmup", type=at_least(0), default=2, help="samples that do not count")
    p.add_argument("--json", metavar="FILE", help="write the rows there too")
    args = p.parse_args(argv)
    for what, given, known in (("--verbs", args.verbs, VERBS),
                               ("--baselines", args.baselines, tuple(BASELINES))):
        if set(given) - set(known):
            p.error(f"{what} {','.join(given)}: expected some of {','.join(known)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    print(f"# {args.nbytes} bytes of float32, one core; 'ratio' is to copying them")
    print(HEADING)
    rows = []
    for name in args.codecs:
        found = measure(name, args)
        print(*(ROW.format(**row) for row in found), sep="\n", flush=True)
        rows += found
    if args.json:
        write_json(args.json, rows)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
