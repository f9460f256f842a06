"""Which elements a sparse codec sends, found by one thread block: see `select` for the host's way.

Keys are the bits of magnitudes as float32 (`lanes`): 31 bits, NaN above Inf above numbers.  The
k-th largest is found exactly, from its high bits to its low ones, in three passes:

    bits 30..20    histogram of 2048 counters in shared memory; the bucket of the k-th key
    bits 19..10    of the keys in that bucket, 1024 counters
    bits  9..0     of the keys in that, 1024 counters: one key, and how many of it are needed

A prefix sum over the counters, from the highest on, finds the bucket.  The sum of squares is in the
order that `select` fixes, SUMS at a time; several pieces of it side by side if there are enough
threads.
"""

import numpy as np
from numba import cuda

from collectives.kernels.cuda_memory import block_function, scalar_function
from collectives.kernels.cuda_numbers import is_number, size_bits
from collectives.kernels.cuda_threads import fold, sum_before
from collectives.kernels.lanes import INF_KEY, NAN_KEY
from collectives.kernels.select import PIECE, SUMS

BUCKETS = 2048
_INF, _NAN = np.uint32(INF_KEY), np.uint32(NAN_KEY)


@scalar_function
def key_of(sent):
    """The key of a float32."""
    size = size_bits(sent)
    return size if size <= _INF else _NAN


@block_function
def find_bucket(counts, length, need, scan, found):
    """(bucket of the `need`-th largest, how many are in those above); counts becomes unused."""
    each = max(length // cuda.blockDim.x, 1)
    first = length - each * (cuda.threadIdx.x + 1)  # thread 0 has the highest
    mine = np.int32(0)
    for b in range(each):
        if first + b >= 0:
            mine = np.int32(mine + np.int32(counts[first + b]))
    above, _ = sum_before(scan, mine)
    if above < need and need <= above + mine:
        b = first + each - 1
        while above + np.int32(counts[b]) < need:
            above = np.int32(above + np.int32(counts[b]))
            b -= 1
        found[0] = b
        found[1] = above
    cuda.syncthreads()
    bucket, above = found[0], found[1]
    cuda.syncthreads()
    return bucket, above


def boundary(read):
    """`find(view, k, counts, scan, found) -> (floor, ties)`; read(view, i) is what would be sent.

    Elements above the floor, and the first `ties` of those at it, are the k largest.
    """
    @block_function
    def find(view, k, counts, scan, found):
        floor, need = np.uint32(0), np.int32(k)
        for step in range(3):
            shift = np.uint32(20 - 10 * step)
            known = np.uint32(10 + shift if step else 31)
            length = BUCKETS // 2 if step else BUCKETS
            clear(counts, length)
            for i in range(cuda.threadIdx.x, view.n, cuda.blockDim.x):
                key = key_of(read(view, i))
                if np.uint32(key >> known) == np.uint32(floor >> known):
                    bucket = np.int64(np.uint32(key >> shift) & np.uint32(length - 1))
                    cuda.atomic.add(counts, bucket, np.uint32(1))
            cuda.syncthreads()
            bucket, above = find_bucket(counts, length, need, scan, found)
            need = np.int32(need - above)
            floor = np.uint32(floor | np.uint32(np.uint32(bucket) << shift))
        return floor, need

    return find


@block_function
def clear(counts, length):
    """Set counters to 0."""
    for b in range(cuda.threadIdx.x, length, cuda.blockDim.x):
        counts[b] = np.uint32(0)
    cuda.syncthreads()


def counter(read):
    """`reaching(view, floor, scan)`: how many keys are `floor` or more."""
    @block_function
    def reaching(view, floor, scan):
        mine = np.int32(0)
        for i in range(cuda.threadIdx.x, view.n, cuda.blockDim.x):
            if key_of(read(view, i)) >= floor:
                mine = np.int32(mine + np.int32(1))
        return sum_before(scan, mine)[1]

    return reaching


def summer(read, rows: int):
    """`squares(view, sums)`: the sum of squares of finite elements; sums : float64 [rows SUMS]."""
    @block_function
    def squares(view, sums):
        total = np.float64(0)
        for start in range(0, view.n, rows * PIECE):
            for lane in range(cuda.threadIdx.x, rows * SUMS, cuda.blockDim.x):
                first = start + (lane // SUMS) * PIECE
                mine = np.float64(0)
                for i in range(first + lane % SUMS, min(first + PIECE, view.n), SUMS):
                    x = read(view, i)
                    if is_number(size_bits(x)):
                        mine += np.float64(x) * np.float64(x)
                sums[lane] = mine
            fold(sums, SUMS, rows)
            for row in range(rows):
                total += sums[row * SUMS]
            cuda.syncthreads()
        return total

    return squares
