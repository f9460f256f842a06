"""Which device kernels are tested; and those of one codec in the simulator beside the host's.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.cuda_cases INDEX

It prints a line of JSON per kernel and count, and does not judge; `test_cuda_kernels` does.
"""

import json
import sys
import warnings
from ctypes import CFUNCTYPE, c_double, c_int64

import ml_dtypes
import numpy as np

from collectives.kernels.codec import Emit
from collectives.kernels.codecs import (
    BFloat16,
    Float16,
    Int4,
    Int8,
    Sign,
    Ternary,
    Threshold,
    TopK,
)
from collectives.kernels.cuda import device_kernel
from collectives.kernels.fused import fused_kernel

CODECS = [Float16(), BFloat16(), Int8(), Int4(block=64), Ternary(), Sign(), Int8(stochastic=True),
          Ternary(block=72, stochastic=True), TopK(0.05), Threshold(1.5), Threshold(relative=1.5),
          None]
CAPABILITIES = [(7, 0), (8, 0), (9, 0)]
DTYPES = {"": np.uint8, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
          "float32": np.float32, "float64": np.float64}
DIVISOR, SEED, POISON = 3, -0x1234_5678_9ABC_DEF0, 0xAA
# Few threads, because the simulator's are threads of Python; short pieces and rounds, so that
# arrays of some hundred elements have several.
SMALL = {"threads": 8}
SMALL_SPARSE = {"threads": 8, "tile": 64, "words": 8}

# In the simulator.  Those that the tests of the host's kernels need too: compiled once for both.
ENCODE = [(Emit.WIRE, False, False, "float32", ""),
          (Emit.WIRE, True, True, "float16", ""),                # decode_add_encode
          (Emit.FINAL, True, True, "bfloat16", "bfloat16")]
VERBS = [*ENCODE,
         (Emit.WIRE, True, True, "float64", ""),
         (Emit.FINAL, False, False, "float32", "float32"),
         (Emit.DECODE, True, False, "", "float16"),
         (Emit.PARTIAL, True, False, "float32", "float32"),      # decode_add
         (Emit.VALUE, True, True, "float64", "float64")]
SPARSE_VERBS = [(Emit.WIRE, False, False, "float16", ""),
                (Emit.WIRE, False, False, "float64", ""),
                (Emit.WIRE, True, False, "float32", ""),         # in the work area
                (Emit.WIRE, True, True, "float32", ""),
                (Emit.FINAL, False, True, "float32", "float32"),
                (Emit.FINAL, True, True, "bfloat16", "bfloat16"),
                *VERBS[4:]]
RELATIVE = [(Emit.WIRE, False, False, "float32", ""),
            (Emit.FINAL, True, True, "float64", "float64")]
PLAIN = [(Emit.VALUE, False, False, "float32", "float32"),
         (Emit.VALUE, False, True, "float64", "float64"),
         (Emit.VALUE, False, True, "float32", "bfloat16"),
         (Emit.PARTIAL, False, False, "float16", "float32")]


# For float32: encode, with residual, decode, decode_add, decode_add_encode, and the two at the end.
ASSEMBLED = [(Emit.WIRE, False, False, "float32", ""), (Emit.WIRE, False, True, "float32", ""),
             (Emit.DECODE, True, False, "", "float32"),
             (Emit.PARTIAL, True, False, "float32", "float32"),
             (Emit.WIRE, True, True, "float32", ""),
             (Emit.FINAL, True, True, "float32", "float32"),
             (Emit.VALUE, True, True, "float32", "float32")]


def assembled_of(codec) -> list[tuple]:
    """Every verb, and for one codec every type.  Variants that share most code: one kernel."""
    if codec is None:
        return PLAIN
    if getattr(codec, "stochastic", False) or getattr(codec, "relative", None):
        return ASSEMBLED[4:5]
    return list(dict.fromkeys(ASSEMBLED + VERBS * (codec == Int8())))


def kernels_of(codec) -> list[tuple]:
    """(emit, adds, feedback, a, dst): every verb and every type."""
    if codec is None:
        return PLAIN
    if codec.needs_work:
        return RELATIVE if getattr(codec, "relative", None) else SPARSE_VERBS
    return ENCODE if codec.stochastic else VERBS


def counts_of(codec, emit: Emit) -> list[int]:
    """Around a block of the wire, or of threads; the last has several."""
    block = codec.block if hasattr(codec, "block") else 256
    if emit is Emit.WIRE:
        return [1, block - 1, block, block + 1, 3 * block + 5]
    return [1, 2 * block + 5]


def elements(n: int, name: str, rng, rare_at: int = 50) -> np.ndarray:
    """Equal ones, zeros and, `rare_at` before the end of long arrays, what is not finite.

    Two NaN never meet: which of them their sum is depends on the compiler's order of operands.
    """
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-2, 3, n)
    x[n // 8:n // 4] = 0.0
    x[n // 4:n // 3] = rng.choice([-1.5, 1.5], n // 3 - n // 4)
    if n > 128:
        rare = [np.nan, np.inf, -np.inf, -np.nan, -0.0, 1e-40, -3e-45, 65519.9, -7e4, 3.4e38, 1e300]
        x[-rare_at:-rare_at + len(rare)] = rare
    with np.errstate(all="ignore"):
        return x.astype(DTYPES[name])


class Memory:
    """What one call of a kernel reads and writes."""

    def __init__(self, codec, emit, adds, feedback, a, dst, n: int):
        rng = np.random.default_rng(n)
        acc = "float64" if "float64" in (a, dst) else "float32"
        nbytes = codec.wire_nbytes(n) if codec else 0
        self.a = elements(n, a, rng) if a else None
        self.dst = np.full(n, 7, DTYPES[dst or acc])
        self.residual = elements(n, acc, rng) if feedback else None
        if feedback:
            self.residual[~np.isfinite(self.residual)] = 0.25
        self.incoming = np.zeros(nbytes, np.uint8)
        if adds:
            codec.encode(elements(n, "float32", rng, 80), None, self.incoming)
        self.wire = np.full(nbytes, POISON, np.uint8)
        self.judged = {"dst": dst != "", "residual": feedback,
                       "wire": emit in (Emit.WIRE, Emit.FINAL)}

    def arrays(self):
        return self.dst, self.a, self.incoming, self.residual, self.wire

    def results(self, variable: bool) -> dict[str, bytes]:
        """Bytes of what the kernel has to write."""
        length = int(self.wire[:8].view("<i8")[0]) if variable and self.judged["wire"] else None
        found = {"dst": self.dst, "residual": self.residual, "wire": self.wire[:length]}
        return {name: found[name].tobytes() for name, judged in self.judged.items() if judged}


def differences(codec, case: tuple, n: int) -> list[str]:
    """Names of the arrays that host and simulated device leave with different bytes."""
    variable = codec is not None and codec.variable
    parameter = codec.parameter if codec else 0.0
    sizes = SMALL_SPARSE if codec and codec.needs_work else SMALL
    host, device = Memory(codec, *case, n), Memory(codec, *case, n)
    call = CFUNCTYPE(None, *[c_int64] * 8, c_double)(
        fused_kernel(codec and codec.layout, *case))
    call(*(0 if x is None else x.__array_interface__["data"][0] for x in host.arrays()),
         n, DIVISOR, SEED, parameter)
    device_kernel(codec, *case, **sizes).launch(
        None, *device.arrays(), n, DIVISOR, SEED, parameter)
    want, got = host.results(variable), device.results(variable)
    return [name for name in want if want[name] != got[name]]


def describe(case: tuple) -> str:
    emit, adds, feedback, a, dst = case
    return "-".join([emit.name, *["adds"] * adds, *["feedback"] * feedback, f"{a}>{dst}"])


def main(index: str) -> None:
    warnings.simplefilter("ignore")  # NumPy's scalars warn of what kernels mean to do
    sys.setswitchinterval(1e-5)      # the simulator's threads take turns all the time
    codec = CODECS[int(index)]
    for case in kernels_of(codec):
        for n in counts_of(codec, case[0]):
            print(json.dumps({"case": describe(case), "n": n,
                              "differs": differences(codec, case, n)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
