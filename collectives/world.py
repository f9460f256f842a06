"""The functions of the package: methods of one communicator over MPI.COMM_WORLD."""

import threading

from collectives.communicator import Communicator

_lock = threading.Lock()
_world: list[Communicator] = []


def world() -> Communicator:
    """The communicator over all ranks; the first call makes it and is collective."""
    if _world:
        return _world[0]
    with _lock:
        if not _world:
            _world.append(Communicator())
    return _world[0]


def _of(comm: Communicator | None) -> Communicator:
    if comm is None:
        return world()
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm={comm!r}: expected a collectives.Communicator, which can be made "
                        "from an mpi4py communicator, or None")
    return comm


def allreduce(tensor, op="sum", *, out=None, compression=None, residual=None, algorithm="auto",
              comm=None):
    """See `Communicator.allreduce`; `comm` is a Communicator, or None for all ranks."""
    here = _world[0] if comm is None and _world else _of(comm)
    return here.allreduce(tensor, op, out=out, compression=compression, residual=residual,
                          algorithm=algorithm)


def iallreduce(tensor, op="sum", *, out=None, compression=None, residual=None, algorithm="auto",
               comm=None):
    """See `Communicator.iallreduce`."""
    return _of(comm).iallreduce(tensor, op, out=out, compression=compression,
                                residual=residual, algorithm=algorithm)


def reduce_scatter(tensor, op="sum", *, out=None, compression=None, residual=None,
                   algorithm="auto", comm=None):
    """See `Communicator.reduce_scatter`."""
    return _of(comm).reduce_scatter(tensor, op, out=out, compression=compression,
                                    residual=residual, algorithm=algorithm)


def allgather(tensor, *, out=None, compression=None, residual=None, algorithm="auto", comm=None):
    """See `Communicator.allgather`."""
    return _of(comm).allgather(tensor, out=out, compression=compression,
                               residual=residual, algorithm=algorithm)


def broadcast(tensor, root=0, *, compression=None, residual=None, algorithm="auto", comm=None):
    """See `Communicator.broadcast`."""
    return _of(comm).broadcast(tensor, root, compression=compression, residual=residual,
                               algorithm=algorithm)


def reduce(tensor, op="sum", root=0, *, out=None, compression=None, residual=None,
           algorithm="auto", comm=None):
    """See `Communicator.reduce`."""
    return _of(comm).reduce(tensor, op, root, out=out, compression=compression,
                            residual=residual, algorithm=algorithm)


def barrier(*, comm=None) -> None:
    """See `Communicator.barrier`."""
    _of(comm).barrier()


def rank() -> int:
    """This process's number among all ranks."""
    return world().rank


def size() -> int:
    """The number of ranks."""
    return world().size


def local_rank() -> int:
    """This process's number among the ranks of its host."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return world().local_size
