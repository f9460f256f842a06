"""What the threads of one block do together: maxima, sums and prefix sums in shared memory.

All threads call these at the same place, with one array of shared memory per call that is not in
use; on return all of them have the result and the array may be reused.  The number of threads is a
power of two.

    maximum, 8 threads     0 1 2 3 4 5 6 7
                           |/ half = 4: t < 4 takes the larger of t and t + 4
                           0 1 2 3 . . . .     then half = 2, half = 1
                           0 . . . . . . .     read by all
"""

import numpy as np
from numba import cuda

from collectives.kernels.cuda_memory import block_function


@block_function
def block_maximum(shared, x):
    """The largest x of all threads."""
    me = cuda.threadIdx.x
    shared[me] = x
    half = cuda.blockDim.x >> 1
    while half > 0:
        cuda.syncthreads()
        if me < half:
            shared[me] = max(shared[me], shared[me + half])
        half >>= 1
    cuda.syncthreads()
    largest = shared[0]
    cuda.syncthreads()
    return largest


@block_function
def fold(shared, count, rows):
    """Sum each row of `count` numbers by halves into its first: t and t + count/2 come first.

    count and the number of rows are powers of two.
    """
    half = count >> 1
    while half > 0:
        cuda.syncthreads()
        for lane in range(cuda.threadIdx.x, half * rows, cuda.blockDim.x):
            at = (lane // half) * count + lane % half
            shared[at] = shared[at] + shared[at + half]
        half >>= 1
    cuda.syncthreads()


@block_function
def sum_before(shared, x):
    """(sum of x, int32, of the threads before this one, sum of all).

    step 1, 2, 4, ...: thread t adds what thread t - step had (Hillis & Steele, CACM 1986)
    """
    me = cuda.threadIdx.x
    shared[me] = x
    step = 1
    while step < cuda.blockDim.x:
        cuda.syncthreads()
        before = shared[me - step] if me >= step else np.int32(0)
        cuda.syncthreads()
        shared[me] = np.int32(shared[me] + before)
        step <<= 1
    cuda.syncthreads()
    before, total = np.int32(shared[me] - x), shared[cuda.blockDim.x - 1]
    cuda.syncthreads()
    return before, total
