"""The functions of the package: methods of one communicator over MPI.COMM_WORLD."""

import logging
import threading

from collectives import abort, lane, lifecycle
from collectives.communicator import Communicator
from collectives.settings import settings

DRAIN_SECONDS = 10.0  # what pending requests get at exit

_lock = threading.Lock()
_world: list[Communicator] = []
_log = logging.getLogger("collectives")


def world() -> Communicator:
    """The communicator over all ranks; the first call makes it and is collective."""
    if _world:
        return _world[0]
    with _lock:
        if not _world:
            lifecycle.mpi()
            _log.setLevel(settings().debug)
            lifecycle.at_exit(_drain)
            _world.append(Communicator())
    return _world[0]


def allreduce(tensor, op="sum", *, out=None, compression=None, residual=None, algorithm="auto",
              comm=None):
    """See `Communicator.allreduce`; `comm` is a Communicator, or None for all ranks."""
    return (comm or world()).allreduce(tensor, op, out=out, compression=compression,
                                       residual=residual, algorithm=algorithm)


def iallreduce(tensor, op="sum", *, out=None, compression=None, residual=None, algorithm="auto",
               comm=None):
    """See `Communicator.iallreduce`."""
    return (comm or world()).iallreduce(tensor, op, out=out, compression=compression,
                                        residual=residual, algorithm=algorithm)


def reduce_scatter(tensor, op="sum", *, out=None, compression=None, residual=None,
                   algorithm="auto", comm=None):
    """See `Communicator.reduce_scatter`."""
    return (comm or world()).reduce_scatter(tensor, op, out=out, compression=compression,
                                            residual=residual, algorithm=algorithm)


def allgather(tensor, *, out=None, compression=None, residual=None, algorithm="auto", comm=None):
    """See `Communicator.allgather`."""
    return (comm or world()).allgather(tensor, out=out, compression=compression,
                                       residual=residual, algorithm=algorithm)


def broadcast(tensor, root=0, *, compression=None, residual=None, algorithm="auto", comm=None):
    """See `Communicator.broadcast`."""
    return (comm or world()).broadcast(tensor, root, compression=compression, residual=residual,
                                       algorithm=algorithm)


def reduce(tensor, op="sum", root=0, *, out=None, compression=None, residual=None,
           algorithm="auto", comm=None):
    """See `Communicator.reduce`."""
    return (comm or world()).reduce(tensor, op, root, out=out, compression=compression,
                                    residual=residual, algorithm=algorithm)


def barrier(*, comm=None) -> None:
    """See `Communicator.barrier`."""
    (comm or world()).barrier()


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


def _drain() -> None:
    """At exit: complete what is pending, say what was forgotten, never leave MPI hanging."""
    pending = lane.drain_all(DRAIN_SECONDS)
    for request in pending:
        _log.error("[rank %d] at exit, still pending after %.0f s: %r", rank(), DRAIN_SECONDS,
                   request)
    if pending:
        abort.end_job(1)
