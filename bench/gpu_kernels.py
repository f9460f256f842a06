"""Check the codecs' device kernels against the host's, and time them against copying on the device.

    python bench/gpu_kernels.py --codecs int8,sign --nbytes 256M --json rows.json

Check: every verb on COUNT elements, bytes of wire, residual and result against those of the host.
Time: medians over launches, by events on the device.  GB/s are of float32 input, 4 bytes per
element and launch; the ratio is the time of copying the same float32 on the device over that of the
verb.

    verb                reads                        writes
    copy                x                            another x
    encode              x                            wire
    encode_residual     x, residual                  wire, residual
    decode              wire                         x
    decode_add          wire, acc                    acc
    fused               wire, x                      wire
    fused_residual      wire, x, residual            wire, residual

Sparse codecs are encoded by one thread block, meant for chunks: they are timed on at most CHUNK
bytes, which fit a GPU's cache.

Without a GPU nothing is measured; in Numba's simulator (NUMBA_ENABLE_CUDASIM=1) the check is made.
The exit status is 1 if any byte was wrong.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from arguments import at_least, names, parse_nbytes
from bandwidth import algbw_GBps
from report import write_json

import collectives as coll
from collectives.kernels.codec import Emit
from collectives.kernels.cuda import device_kernel, simulated, unavailable

CODECS = "float16,bfloat16,int8,int4,ternary,sign,topk:0.01,threshold:relative=2"
VERBS = {"encode": (Emit.WIRE, False, False), "encode_residual": (Emit.WIRE, False, True),
         "decode": (Emit.DECODE, True, False), "decode_add": (Emit.PARTIAL, True, False),
         "fused": (Emit.WIRE, True, False), "fused_residual": (Emit.WIRE, True, True)}
CHUNK_NBYTES = 1 << 20
SEED = 7
ROW = ("{codec:<40} {verb:<16} {nbytes:>11} {time_us:>10.1f} {gbps:>8.1f} {memcpy_ratio:>8.2f} "
       "{wrong:>7}")
CHECKED = "{codec:<40} {verb:<16} {count:>8} elements {wrong:>7} wrong"
HEADING = (f"{'codec':<40} {'verb':<16} {'size(B)':>11} {'time(us)':>10} {'GB/s':>8} {'ratio':>8} "
           f"{'#wrong':>7}")


class Arrays(NamedTuple):
    """What kernels read and write, in the order of their arguments; on the host or the device."""

    dst: object
    x: object
    incoming: object
    residual: object
    wire: object


def on_host(codec, verb: str, n: int) -> Arrays:
    """Gradients, a residual a tenth of them, the wire of others; as before a call."""
    rng = np.random.default_rng(n)
    x, other = rng.standard_normal((2, n), dtype=np.float32)
    residual = rng.standard_normal(n, dtype=np.float32) / np.float32(10)
    incoming = np.zeros(codec.wire_nbytes(n), np.uint8)
    codec.encode(other, None, incoming)
    dst = x.copy() if verb == "decode_add" else np.zeros(n, np.float32)
    return Arrays(dst, x, incoming, residual, np.zeros_like(incoming))


def run_on_host(codec, verb: str, arrays: Arrays) -> None:
    """What the kernel has to do, by the codec's methods."""
    residual = arrays.residual if verb.endswith("residual") else None
    if verb.startswith("encode"):
        codec.encode(arrays.x, residual, arrays.wire, seed=SEED)
    elif verb == "decode":
        codec.decode(arrays.incoming, arrays.dst)
    elif verb == "decode_add":
        codec.decode_add(arrays.incoming, arrays.dst)
    else:
        codec.decode_add_encode(arrays.incoming, arrays.x, residual, arrays.wire, seed=SEED)


def launcher(codec, verb: str, arrays: Arrays, n: int):
    """A call that queues the verb's kernel on the default stream."""
    emit, adds, feedback = VERBS[verb]
    a, dst = ("", "float32") if emit is Emit.DECODE else (
        "float32", "float32" if emit is Emit.PARTIAL else "")
    few = {"threads": 8} if simulated() else {}  # each is a thread of Python
    kernel = device_kernel(codec, emit, adds, feedback, a, dst, **few)
    seed = codec.seed + SEED

    def launch() -> None:
        source = arrays.dst if verb == "decode_add" else arrays.x
        kernel.launch(None, arrays.dst, source, arrays.incoming, arrays.residual, arrays.wire, n, 1,
                      seed, codec.parameter)

    return launch


def check(codec, verb: str, n: int) -> int:
    """How many bytes of the kernel's results differ from the host's."""
    from numba import cuda
    want, given = on_host(codec, verb, n), on_host(codec, verb, n)
    device = Arrays(*map(cuda.to_device, given))
    launcher(codec, verb, device, n)()
    run_on_host(codec, verb, want)
    emit, _, feedback = VERBS[verb]
    judged = ["wire"] if emit is Emit.WIRE else ["dst"]
    judged += ["residual"] if feedback else []
    wrong = 0
    for name in judged:
        expected = getattr(want, name).view(np.uint8)
        got = getattr(device, name).copy_to_host().view(np.uint8)
        end = int(expected[:8].view("<i8")[0]) if codec.variable and name == "wire" else None
        wrong += int(np.count_nonzero(expected[:end] != got[:end]))
    return wrong


def median_s(call, iterations: int, warmup: int = 3) -> float:
    """Seconds of a call on the device."""
    from numba import cuda
    times_ms = []
    for _ in range(warmup + iterations):
        start, end = cuda.event(), cuda.event()
        start.record()
        call()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return float(np.median(times_ms[warmup:])) * 1e-3


def measure(codec, args: argparse.Namespace) -> list[dict]:
    """One row per verb."""
    from numba import cuda
    nbytes = args.nbytes if codec.concatenates else min(args.nbytes, CHUNK_NBYTES)
    n, rows = max(1, nbytes // 4), []
    for verb in args.verbs:
        device = Arrays(*map(cuda.to_device, on_host(codec, verb, n)))
        target = cuda.device_array_like(device.x)
        copying_s = median_s(lambda t=target, d=device: t.copy_to_device(d.x), args.iters)
        time_s = median_s(launcher(codec, verb, device, n), args.iters)
        rows.append({"codec": repr(codec), "verb": verb, "nbytes": 4 * n,
                     "wire_nbytes": codec.wire_nbytes(n), "time_us": 1e6 * time_s,
                     "gbps": algbw_GBps(4 * n, time_s), "memcpy_ratio": copying_s / time_s,
                     "wrong": check(codec, verb, args.count)})
    return rows


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--codecs", default=CODECS, help="names as for compression=; ';' or ',' between")
    p.add_argument("--verbs", type=names, default=",".join(VERBS))
    p.add_argument("--nbytes", type=parse_nbytes, default="256M", help="of float32 input, timed")
    p.add_argument("--count", type=at_least(1),
                   help="elements that are checked (by default 100003; in the simulator 1500)")
    p.add_argument("-n", "--iters", type=at_least(1), default=20, help="launches that are timed")
    p.add_argument("--json", metavar="FILE", help="write the rows there too")
    args = p.parse_args(argv)
    args.count = args.count or (1500 if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else 100_003)
    if set(args.verbs) - set(VERBS):
        p.error(f"--verbs {','.join(args.verbs)}: expected some of {','.join(VERBS)}")
    try:
        args.codecs = [coll.as_codec(name) for name in args.codecs.replace(";", ",").split(",")]
    except ValueError as error:
        p.error(str(error))
    return args


def check_in_simulator(codec, args: argparse.Namespace) -> list[dict]:
    """One row per verb, without times."""
    return [{"codec": repr(codec), "verb": verb, "count": args.count,
             "wrong": check(codec, verb, args.count)} for verb in args.verbs]


def report(args: argparse.Namespace, rows_of, line: str) -> list[dict]:
    """Print and return the rows."""
    rows = []
    for codec in args.codecs:
        found = rows_of(codec, args)
        print(*(line.format(**row) for row in found), sep="\n", flush=True)
        rows += found
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    reason, rows = unavailable(), []
    if reason:
        print(f"no GPU: nothing was measured ({reason})")
    elif simulated():
        print("simulator: results are checked, nothing is measured")
        sys.setswitchinterval(1e-5)  # its threads take turns all the time
        warnings.simplefilter("ignore")  # NumPy's scalars warn of what kernels mean to do
        rows = report(args, check_in_simulator, CHECKED)
    else:
        print(f"# {args.nbytes} bytes of float32; 'ratio' is to copying them on the device")
        print(HEADING)
        rows = report(args, measure, ROW)
    if args.json:
        write_json(args.json, rows)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
