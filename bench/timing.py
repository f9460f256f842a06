"""The one timing loop of the benches.

One sample of one contender is

    prepare    refill buffers, whatever takes long: not timed
    barrier    every rank starts the sample together, however late one of them was ready
    call       timed on every rank

and its time is that of the slowest rank.  The contenders take turns, A B A B ..., so that a
machine that slows down for a while slows all of them down.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from mpi4py import MPI


def interleave(comm: MPI.Comm, calls: Sequence[Callable], prepare: Callable[[int], tuple],
               iterations: int, warmup: int) -> np.ndarray:
    """Time each of `calls` `iterations` times, after `warmup` rounds that do not count.

    Before each sample `prepare(k)` returns the arguments for `calls[k]`.

    Returns
    -------
    float64, shape (len(calls), iterations)
        Seconds of the slowest rank; the same on all ranks.
    """
    times_s = np.empty((len(calls), iterations))
    for i in range(-warmup, iterations):
        for k, call in enumerate(calls):
            arguments = prepare(k)
            comm.Barrier()
            start = perf_counter()
            call(*arguments)
            elapsed_s = perf_counter() - start
            if i >= 0:
                times_s[k, i] = elapsed_s
    comm.Allreduce(MPI.IN_PLACE, times_s, MPI.MAX)
    return times_s


def default_iterations(nbytes: int) -> int:
    """About half a gigabyte through each contender, in 10 to 200 samples."""
    return int(np.clip(2**29 // max(nbytes, 1), 10, 200))
