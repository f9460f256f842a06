"""The one timing loop of the benches.

One sample of one contender is

    prepare    refill buffers, whatever takes long: not timed
    barrier    every rank starts the sample together, however late one of them was ready
    call       timed on every rank

and its time is that of the slowest rank.  The contenders take turns, so that a machine that slows
down for a while slows all of them down.  A turn begins with samples that do not count, because a
contender finds what the one before left behind: ranks that a scheduler has put on one core, other
threads that still run, cold code.  Right after a call of gloo, 8 bytes took 2,100 us instead of 28
(2 ranks on 2 cores), and five calls later next to nothing was left of that.  The order of turns is
reversed every time, so that contenders have each other's traces before them equally often.

    A A a a a a a   B B b b b b b   C C c c c c c   C C c c c c c   B B b b b b b   ...
    capitals do not count
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from mpi4py import MPI

TURN = 5  # samples that count


def interleave(comm: MPI.Comm, calls: Sequence[Callable], prepare: Callable[[int], tuple],
               iterations: int, warmup: int) -> np.ndarray:
    """Time each of `calls` `iterations` times, in turns that begin with `warmup` more calls.

    Before each sample `prepare(k)` returns the arguments for `calls[k]`.

    Returns
    -------
    float64, shape (len(calls), iterations)
        Seconds of the slowest rank; the same on all ranks.
    """
    times_s = np.empty((len(calls), iterations))
    order = list(range(len(calls)))
    for first in range(0, iterations, TURN):
        for k in order:
            for i in range(first - warmup, min(first + TURN, iterations)):
                arguments = prepare(k)
                comm.Barrier()
                start = perf_counter()
                calls[k](*arguments)
                elapsed_s = perf_counter() - start
                if i >= first:
                    times_s[k, i] = elapsed_s
        order.reverse()
    comm.Allreduce(MPI.IN_PLACE, times_s, MPI.MAX)
    return times_s


def default_iterations(nbytes: int) -> int:
    """About half a gigabyte through each contender, in 10 to 200 samples."""
    return int(np.clip(2**29 // max(nbytes, 1), 10, 200))
