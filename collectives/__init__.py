"""All-reduce and its relatives for gradients, from Python, over any MPI.

>>> from collectives import allreduce
>>> allreduce(grad, op="mean")                                          # doctest: +SKIP

Importing this package does not initialise MPI; the first call does.  The functions here are the
methods of one communicator over all ranks, made by that first call; see `Communicator`.
"""

from collectives import abort as _abort
from collectives.error_feedback import ErrorFeedback
from collectives.errors import MismatchError, MPIError, StallError
from collectives.kernels.codecs import (
    BFloat16,
    Codec,
    Float16,
    Int4,
    Int8,
    Sign,
    Ternary,
    Threshold,
    TopK,
    as_codec,
)
from collectives.policies import ByName, ByStep, MinSize, TensorInfo
from collectives.world import (
    Communicator,
    allgather,
    allreduce,
    barrier,
    broadcast,
    iallreduce,
    local_rank,
    local_size,
    rank,
    reduce,
    reduce_scatter,
    size,
    world,
)

__all__ = [
    "BFloat16",
    "ByName",
    "ByStep",
    "Codec",
    "Communicator",
    "ErrorFeedback",
    "Float16",
    "Int4",
    "Int8",
    "MPIError",
    "MinSize",
    "MismatchError",
    "Sign",
    "StallError",
    "TensorInfo",
    "Ternary",
    "Threshold",
    "TopK",
    "allgather",
    "allreduce",
    "as_codec",
    "barrier",
    "broadcast",
    "iallreduce",
    "local_rank",
    "local_size",
    "rank",
    "reduce",
    "reduce_scatter",
    "size",
    "world",
]

# A rank that fails between the user's own MPI.Init and our first call must end the job too.
_abort.install()
