"""PyTorch's gloo, on the ranks of the MPI job that is running: the baseline `gloo`.

Rank 0 opens a TCPStore on a free port of the loopback interface and tells the others the port by
MPI; there the ranks find each other.  So all ranks have to be on one host.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from collective import REDUCING, ROOT
from contenders import Contender, Unavailable, exact
from mpi4py import MPI

LOOPBACK = "127.0.0.1"
OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX,
       "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


@contextmanager
def group(comm: MPI.Comm) -> Iterator[dist.ProcessGroup]:
    """The gloo group of all ranks; those who ask while there is one share it.  Collective."""
    if dist.is_initialized():
        yield dist.group.WORLD
        return
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local = host.size
    host.Free()
    if comm.allreduce(local, MPI.MIN) < comm.size:
        raise Unavailable("gloo is set up on one host only")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // local))  # as if every rank had its share of the cores
    dist.init_process_group("gloo", store=_store(comm), rank=comm.rank, world_size=comm.size)
    yield dist.group.WORLD
    # Not after an exception, which the other ranks may not have.
    comm.Barrier()  # the store goes with rank 0
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def _store(comm: MPI.Comm) -> dist.TCPStore:
    if comm.rank == 0:
        store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        comm.bcast(store.port)
        return store
    return dist.TCPStore(LOOPBACK, comm.bcast(None), is_master=False)


def tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory; NumPy's bfloat16 is not known to PyTorch by its type."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dense(world: dist.ProcessGroup, comm: MPI.Comm, op: str, collective: str) -> Contender:
    """gloo's collective; a mean is the sum, then divided, and a result that is not in place is
    copied first where the call has no output of its own, as a user would write it."""
    gloo_op = OPS[op]
    gather = _first(dist, "all_gather_single", "all_gather_into_tensor")
    scatter = _first(dist, "reduce_scatter_single", "reduce_scatter_tensor")

    def allreduce(send, recv):
        dist.all_reduce(_copied(send, recv), gloo_op)

    def reduce_scatter(send, recv):
        scatter(tensor(recv), tensor(send), gloo_op)

    def allgather(send, recv):
        gather(tensor(recv), tensor(send))

    def broadcast(send, recv):
        dist.broadcast(tensor(recv), ROOT)

    def reduce(send, recv):
        dist.reduce(_copied(send, recv), ROOT, gloo_op)

    call = locals()[collective]

    def mean(send, recv):
        call(send, recv)
        if collective != "reduce" or comm.rank == ROOT:
            rounding = None if recv.dtype.kind in "fc" else "floor"
            tensor(recv).div_(comm.size, rounding_mode=rounding)

    def anything(size: int, largest: float) -> float:
        return np.inf

    averages = op == "mean" and collective in REDUCING
    spoils = collective == "reduce" and comm.rank != ROOT  # gloo leaves partial sums there
    return Contender("gloo", mean if averages else call, baseline=True,
                     slack=anything if spoils else exact)


def _copied(send: np.ndarray, recv: np.ndarray) -> torch.Tensor:
    """`recv`, with the input in it."""
    target = tensor(recv)
    if recv is not send:
        target.copy_(tensor(send))
    return target


def _first(module, *alternatives: str):
    """The first that this version has; PyTorch renames its functions."""
    return next(getattr(module, name) for name in alternatives if hasattr(module, name))
