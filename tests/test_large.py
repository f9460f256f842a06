"""Tensors longer than a C int can count, in bytes and in elements."""

import os

import pytest

from tests.mpirun import run_script

NEEDED_NBYTES = 8 << 30  # two ranks with one tensor each, and room to check it

SCRIPT = """
import sys
import numpy as np
import collectives as coll

dtype, count, algorithm = np.dtype(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank, size = coll.rank(), coll.size()
x = np.empty(count, dtype)
# Small integers, so that sums are exact; of a prime period, so that a shift shows.
PIECE = 31 << 20
pattern = (np.arange(PIECE) % 31).astype(dtype)

for lo in range(0, count, PIECE):
    part = x[lo:lo + PIECE]
    np.add(pattern[:part.size], dtype.type(rank), out=part)
coll.allreduce(x, algorithm=algorithm)
want = size * pattern + dtype.type(size * (size - 1) // 2)
for lo in range(0, count, PIECE):
    part = x[lo:lo + PIECE]
    assert np.array_equal(part, want[:part.size]), lo
print(f"right on rank {rank}\\n", end="")
"""


def available_nbytes():
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.xdist_group("cores")  # one at a time: memory
@pytest.mark.skipif(available_nbytes() < NEEDED_NBYTES, reason="needs 8 GiB of free memory")
@pytest.mark.parametrize("dtype, count, algorithm", [
    ("float32", 590_558_003, "ring"),  # 2.2 GiB
    ("int8", (1 << 31) + 1_234_567, "ring"),
    ("int8", (1 << 31) + 1_234_567, "native"),
])
def test_a_tensor_beyond_2_to_the_31_is_right(dtype, count, algorithm, tmp_path):
    job = run_script(2, SCRIPT, tmp_path, arguments=[dtype, count, algorithm], timeout=300)
    assert job.returncode == 0 and job.stdout.count("right on rank") == 2, job.stdout
