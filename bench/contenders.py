"""What is measured: our algorithms; what there is to beat is in baselines.py and torch_gloo.py.

A contender gets two buffers, `send` and `recv`, and leaves its result in `recv`; in place they are
the same array (collective.py says how long they are).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import compressed
import numpy as np
from collective import ROOT
from mpi4py import MPI

import collectives

ALIASES = {"tree": "binomial_tree"}


class Unavailable(Exception):
    """A baseline that cannot take part, and why."""


def exact(size: int, largest: float) -> float:
    """The slack of contenders that drop nothing."""
    return 0.0


@dataclass(frozen=True)
class Contender:
    """One line of the table.

    slack(size, largest) : how far off an element of a result may be, if the largest is `largest`
    law(tensor, residual) : one call in place that leaves in `residual`, all 0 before, what was
        dropped; None of contenders that drop nothing
    """

    name: str
    call: Callable[[np.ndarray, np.ndarray], object]
    baseline: bool = False
    prepare: Callable[[], object] | None = None  # before each sample, not timed
    compression: str = "none"
    algorithm: str | None = None  # of ours
    slack: Callable[[int, float], float] = exact
    law: Callable[[np.ndarray, np.ndarray], object] | None = None


def ours(algorithm: str, op: str, compression: str = "none", feedback: bool = False,
         collective: str = "allreduce") -> Contender:
    """One of our collectives with one algorithm, named in full or by an alias, and one codec.

    feedback : whether what is dropped goes into a residual, and into the next call
    """
    algorithm = ALIASES.get(algorithm, algorithm)
    verb = OURS[collective]
    if compression == "none":
        return Contender(algorithm, partial(verb, op, algorithm=algorithm), algorithm=algorithm)
    codec = collectives.as_codec(compression)
    residuals: dict[int, np.ndarray] = {}  # by count

    def call(send, recv):
        residual = None
        if feedback:
            if send.size not in residuals:
                residuals[send.size] = np.zeros(send.size, compressed.accumulator(send.dtype))
            residual = residuals[send.size]
        verb(op, send, recv, algorithm=algorithm, compression=codec, residual=residual)

    def law(tensor, residual):
        verb(op, tensor, tensor, algorithm=algorithm, compression=codec, residual=residual)

    return Contender(algorithm, call, compression=compression, algorithm=algorithm, law=law,
                     slack=partial(compressed.slack, codec, feedback))


def _allreduce(op, send, recv, **how):
    collectives.allreduce(send, op, out=None if recv is send else recv, **how)


def _reduce_scatter(op, send, recv, **how):
    collectives.reduce_scatter(send, op, out=recv, **how)


def _allgather(op, send, recv, **how):
    collectives.allgather(send, out=recv.reshape(-1, send.size), **how)


def _broadcast(op, send, recv, **how):
    collectives.broadcast(recv, ROOT, **how)


def _reduce(op, send, recv, **how):
    collectives.reduce(send, op, ROOT, out=None if recv is send else recv, **how)


OURS = {"allreduce": _allreduce, "reduce_scatter": _reduce_scatter, "allgather": _allgather,
        "broadcast": _broadcast, "reduce": _reduce}


def refusal(contender: Contender, send: np.ndarray, recv: np.ndarray) -> str | None:
    """Why the contender cannot do it with these buffers; None if it can.

    Refusing is a collective decision: it happens on every rank, before any message.
    """
    try:
        contender.call(send, recv)
    except (MPI.Exception, BufferError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None
