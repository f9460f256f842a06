"""What there is to beat: the MPI library's own collectives, and PyTorch's gloo (torch_gloo.py)."""

from contextlib import ExitStack

import numpy as np
from collective import REDUCING, ROOT
from contenders import Contender, Unavailable
from mpi4py import MPI

MPI_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}


def mpi(comm: MPI.Comm, op: str, collective: str = "allreduce") -> Contender:
    """mpi4py's collective.  MPI has no mean: sum, then divide, as a user would write it."""
    mpi_op = MPI_OPS[op]

    def allreduce(send, recv):
        comm.Allreduce(MPI.IN_PLACE if recv is send else send, recv, mpi_op)

    def reduce_scatter(send, recv):
        comm.Reduce_scatter_block(send, recv, mpi_op)

    def allgather(send, recv):
        comm.Allgather(send, recv)

    def broadcast(send, recv):
        comm.Bcast(recv, ROOT)

    def reduce(send, recv):
        if comm.rank == ROOT:
            comm.Reduce(MPI.IN_PLACE if recv is send else send, recv, mpi_op, ROOT)
        else:
            comm.Reduce(send, None, mpi_op, ROOT)

    call = locals()[collective]

    def mean(send, recv):
        call(send, recv)
        if collective != "reduce" or comm.rank == ROOT:
            divide = np.floor_divide if recv.dtype.kind in "iu" else np.divide
            divide(recv, comm.size, out=recv)

    averages = op == "mean" and collective in REDUCING
    return Contender("mpi", mean if averages else call, baseline=True)


def _gloo(comm, op, collective, dtype, stack) -> list[Contender]:
    import torch_gloo
    return [torch_gloo.dense(_group(comm, stack), comm, op, collective)]


def _torch(comm, op, collective, dtype, stack) -> list[Contender]:
    if collective != "allreduce" or dtype != np.float32 or op not in ("sum", "mean"):
        raise Unavailable("DDP's hooks are for the sum or mean of gradients: allreduce of float32")
    import torch_hooks
    return torch_hooks.hooks(_group(comm, stack), comm.size, op)


def _group(comm, stack):
    import torch_gloo
    return stack.enter_context(torch_gloo.group(comm))


FACTORIES = {"mpi": lambda comm, op, collective, dtype, stack: [mpi(comm, op, collective)],
             "gloo": _gloo, "torch": _torch}


def make(name: str, comm: MPI.Comm, op: str, collective: str, dtype: np.dtype,
         stack: ExitStack) -> list[Contender]:
    """The contenders of one of --baselines; what they hold is released with `stack`.

    Raises
    ------
    Unavailable
        On every rank alike.
    """
    try:
        return FACTORIES[name](comm, op, collective, dtype, stack)
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
