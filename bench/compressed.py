"""What is special about timing a lossy all-reduce: when it is right, and what it sends.

A lossy result differs from the exact sum, so two things are checked instead of equality.  In one
call that is not timed, with a residual that starts at 0, the laws: all ranks hold the same bits,
and result + sum of residuals = sum of inputs, to rounding (each of the 3p roundings of an element
is half an ulp of at most the sum of all magnitudes).  And in every timed call, that results are
no further off than `slack`.
"""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import collectives


def slack(codec, feedback: bool, size: int, largest: float) -> float:
    """Most that an element of a timed result may be off.

    A value is encoded at most `size` times, each time off by at most the bound of a block that
    reaches the largest sum; with feedback it also carries what earlier calls have dropped.  What
    a sparse codec sends late has no bound of use: only the laws are checked.
    """
    if not codec.concatenates:
        return np.inf
    block = np.zeros(max(codec.align, 2), np.float32)
    block[0] = largest  # beside zeros: what is worst for every codec
    return float(np.max(codec.error_bound(block))) * size * (2 if feedback else 1)


def broken(comm: MPI.Comm, call: Callable, given: np.ndarray, mean: bool) -> int:
    """How many elements of a result break a law, on this rank.  Collective.

    call(tensor, residual) : reduces in place
    """
    result, residual = given.copy(), np.zeros(given.size, accumulator(given.dtype))
    call(result, residual)
    first = comm.bcast(result)
    return int(np.count_nonzero(result.view(np.uint8) != first.view(np.uint8))
               + np.count_nonzero(_lost(comm, given, result, residual, mean)))


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype of residuals."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _lost(comm, given, result, residual, mean: bool) -> np.ndarray:
    total = comm.allreduce(given.astype(np.float64) - residual)
    magnitude = comm.allreduce(np.abs(given.astype(np.float64)) + np.abs(residual))
    times = comm.size if mean else 1
    roundoff = np.finfo(residual.dtype).eps / 2
    left = np.abs(total - times * result.astype(np.float64))
    return ~(left <= 3 * comm.size * roundoff * magnitude)


def sent_nbytes(comm: MPI.Comm, call: Callable, send: np.ndarray, recv: np.ndarray) -> float:
    """Bytes that a rank sends in one call, on average over ranks.  Collective."""
    before = collectives.world().sent_nbytes
    call(send, recv)
    return comm.allreduce(collectives.world().sent_nbytes - before) / comm.size
