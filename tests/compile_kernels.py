"""Compile what the tests of compression need, on all cores, before many ranks wait for one.

    python -m tests.compile_kernels 0 2      the first of two halves

The kernels are those of the plans that tests/mpi/test_compression.py runs on all ranks.
"""

import subprocess
import sys
from itertools import product

from collectives.kernels.codecs import as_codec
from collectives.kernels.fused import fused_kernel
from collectives.plan import Signature, lower
from tests.compression_matrix import ALGORITHMS, CODECS, DTYPES

SIZES = [1, 2, 3, 4, 5, 8]
PROCESSES = 2


def plans():
    """Of all ranks, for one call of each kind."""
    for name, algorithm, dtype, size in product(CODECS, ALGORITHMS, DTYPES, SIZES):
        for rank in range(size):
            yield lower(Signature("allreduce", algorithm, rank, size, 0, (5000,), dtype, "sum",
                                  True, 1 << 20, codec=as_codec(name).layout, feedback=True))


def needed() -> list[tuple]:
    """The codec and kernel of each, once; in the same order in every process."""
    return list(dict.fromkeys(
        (plan.signature.codec, kernel) for plan in plans() for kernel in plan.kernels))


def compile_all() -> None:
    """In several processes."""
    shares = [subprocess.Popen([sys.executable, "-m", "tests.compile_kernels", str(n),
                                str(PROCESSES)]) for n in range(PROCESSES)]
    for share in shares:
        assert share.wait() == 0


if __name__ == "__main__":
    share, of = map(int, sys.argv[1:])
    for codec, k in needed()[share::of]:
        fused_kernel(codec, k.emit, k.adds, k.feedback, k.a, k.dst)
