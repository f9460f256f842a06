"""What is measured: our algorithms and what to beat.

A contender gets two buffers, `send` and `recv`, and leaves the reduction in `recv`; in place they
are the same array.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from compressed import accumulator
from mpi4py import MPI

import collectives

ALIASES = {"tree": "binomial_tree"}
MPI_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}


@dataclass(frozen=True)
class Contender:
    """One line of the table."""

    name: str
    call: Callable[[np.ndarray, np.ndarray], object]
    baseline: bool = False
    prepare: Callable[[], object] | None = None  # before each sample, not timed
    compression: str = "none"
    algorithm: str | None = None  # of ours
    codec: collectives.Codec | None = None
    feedback: bool = False


def ours(algorithm: str, op: str, compression: str = "none", feedback: bool = False) -> Contender:
    """`collectives.allreduce` with one algorithm, named in full or by an alias, and one codec.

    feedback : whether what is dropped goes into a residual, and into the next call
    """
    algorithm = ALIASES.get(algorithm, algorithm)
    codec = None if compression == "none" else collectives.as_codec(compression)
    residuals: dict[int, np.ndarray] = {}  # by count

    def call(send, recv):
        residual = None
        if feedback and codec:
            if send.size not in residuals:
                residuals[send.size] = np.zeros(send.size, accumulator(send.dtype))
            residual = residuals[send.size]
        out = None if recv is send else recv
        collectives.allreduce(send, op, out=out, algorithm=algorithm, compression=codec,
                              residual=residual)

    return Contender(algorithm, call, compression=compression, algorithm=algorithm, codec=codec,
                     feedback=feedback)


def mpi(comm: MPI.Comm, op: str) -> Contender:
    """MPI_Allreduce of mpi4py.  MPI has no mean: sum, then divide, as a user would write it."""
    mpi_op = MPI_OPS[op]

    def reduce(send, recv):
        comm.Allreduce(MPI.IN_PLACE if recv is send else send, recv, mpi_op)

    def mean(send, recv):
        reduce(send, recv)
        divide = np.floor_divide if recv.dtype.kind in "iu" else np.divide
        divide(recv, comm.size, out=recv)

    return Contender("mpi", mean if op == "mean" else reduce, baseline=True)


BASELINES = {"mpi": mpi}


def refusal(contender: Contender, dtype: np.dtype) -> str | None:
    """Why the contender cannot reduce `dtype`; None if it can.

    Refusing is a collective decision: it happens on every rank, before any message.
    """
    one = np.ones(1, dtype)
    try:
        contender.call(one, one)
    except (MPI.Exception, BufferError, KeyError, TypeError, ValueError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None
