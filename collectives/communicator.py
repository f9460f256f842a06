"""Communicator: a private duplicate of an MPI communicator, with its plans and lanes."""

import logging

import numpy as np

from collectives import abort, calls, check, lifecycle, schedules
from collectives.calls import Call
from collectives.engines import Engines
from collectives.lane import Lane
from collectives.lanes import Lanes
from collectives.placement import Placement
from collectives.repeats import plain_target
from collectives.request import SLICE, Request, unfinished
from collectives.settings import settings
from collectives.stall import Control, meet


class Communicator:
    """The collectives of a group of ranks.

    Construction and `close` are collective: all ranks of `mpi_comm` call them in the same order.
    Dropping a communicator frees nothing and sends nothing, so it can be dropped at any time; an
    MPI library has about 2,000 communicators, so close those that you make in a loop.

    Parameters
    ----------
    mpi_comm : mpi4py.MPI.Intracomm, optional
        Whose ranks take part; MPI.COMM_WORLD if None.  Our messages travel on a duplicate of it
        and never match the caller's.
    topology : optional
        Reserved: schedules are flat in this version.

    Raises
    ------
    TypeError
        If `mpi_comm` is no intracommunicator.
    """

    def __init__(self, mpi_comm=None, *, topology=None):
        self._mpi = mpi = lifecycle.mpi()
        mpi_comm = mpi.COMM_WORLD if mpi_comm is None else mpi_comm
        if not isinstance(mpi_comm, mpi.Intracomm) or mpi_comm == mpi.COMM_NULL:
            raise TypeError(f"mpi_comm={mpi_comm!r}: expected an mpi4py.MPI.Intracomm")
        if topology is not None:
            raise NotImplementedError("topology= comes with the topology model")
        _check_settings()
        meet(mpi_comm)
        self._comm = mpi_comm.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.placement = Placement.of(self._comm)
        self.engines = Engines(mpi, self._comm, self.placement)
        self.lanes = Lanes(self, mpi)
        self.control = Control(mpi, self._comm, self.lanes.by_index)
        self.broken: str | None = None
        self._checked = settings().check and self.size > 1
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"rank {self.rank} of {self.size}"
        return f"<Communicator {state}>"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is None:
            self.close()

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host."""
        return self.placement.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks its host has."""
        return self.placement.local_size

    def allreduce(self, tensor, op="sum", *, out=None, compression=None, residual=None,
                  algorithm="auto"):
        """Combine the tensors of all ranks; every rank gets the result.

        Parameters
        ----------
        tensor : NumPy array, PyTorch CPU tensor, JAX array, number, or a container of them
            Of equal shape and dtype on all ranks; layouts may differ.  A container is reduced
            in one message per dtype.
        op : "sum", "mean", "max", "min", "prod"; "and", "or" for bool
            `mean` of integers truncates once, toward zero.
        out : same type as tensor, optional
            Where the result goes; `tensor` is then only read.
        compression : codec, str, policy, optional
            What messages are encoded with, such as "int8" or "topk:0.01": for float tensors, op
            sum and mean.  A policy (`policies`) chooses for each tensor.
        residual : array or container like `tensor`, or ErrorFeedback, optional
            What encoding drops is added to it, and it is added to what is encoded, so that in
            the long run nothing is lost.  Of the tensor's shape; float64 for float64, else
            float32 (or the tensor's own dtype, which rounds it).
        algorithm : str
            See the README's table.

        Returns
        -------
        `tensor` itself, reduced in place (so `allreduce(g)` and `g = allreduce(g)` mean the
        same); `out` if given; a new value where `tensor` is immutable (JAX, numbers).  All ranks
        have the same bits.

        Raises
        ------
        TypeError, ValueError
            Before any message: unsupported dtype, op or layout, an array that cannot be written,
            a codec that means nothing for the dtype or op, a residual of another shape.
        MPIError
            If MPI fails; the communicator is then broken.

        Examples
        --------
        >>> allreduce(np.array([1.0, 2.0]), op="mean")      # doctest: +SKIP
        """
        if type(tensor) is np.ndarray and out is compression is residual is None \
                and tensor.flags.carray:  # the shortest way, without another function on it
            key = ("allreduce", op, 0, int, algorithm, tensor.dtype, tensor.shape, True)
            if self._repeat(key, tensor, tensor):
                return tensor
        return self._run("allreduce", tensor, op, out, 0, algorithm, compression, residual)

    def iallreduce(self, tensor, op="sum", *, out=None, compression=None, residual=None,
                   algorithm="auto") -> Request:
        """Start an allreduce; parameters and errors as `allreduce`.

        Returns
        -------
        Request : `.test() -> bool`, `.wait(timeout=None)` returns what `allreduce` would.
            Until then the tensor may be neither read nor written.  Any number may be in flight
            and be waited for in any order.
        """
        lane = self._usable_lane()
        return lane.start(self._admit(lane, lambda: self._build(
            "allreduce", tensor, op, out, 0, algorithm, compression, residual)))

    def reduce_scatter(self, tensor, op="sum", *, out=None, compression=None, residual=None,
                       algorithm="auto"):
        """Combine the tensors of all ranks; every rank gets its rows.

        Returns
        -------
        `out`, or a new tensor: `np.array_split(combined, size)[rank]`, that is the rows (entries
        of the first axis) of this rank; the first ranks get one more where they do not divide.
        A 0-d tensor counts as one row.  `tensor` is not changed.

        Other parameters and errors as `allreduce`.
        """
        return self._run("reduce_scatter", tensor, op, out, 0, algorithm, compression, residual)

    def allgather(self, tensor, *, out=None, compression=None, residual=None, algorithm="auto"):
        """Give every rank the tensors of all.

        Returns
        -------
        `out`, or a new tensor of shape (size, *tensor.shape), entry r from rank r.

        Other parameters and errors as `allreduce`; tensors have equal shapes on all ranks.
        """
        return self._run("allgather", tensor, "sum", out, 0, algorithm, compression, residual)

    def broadcast(self, tensor, root=0, *, compression=None, residual=None, algorithm="auto"):
        """Give every rank the root's tensor, in place.

        Returns
        -------
        `tensor`, or a new value where it is immutable.  All ranks pass tensors of equal shape
        and dtype.

        Other parameters and errors as `allreduce`.
        """
        return self._run("broadcast", tensor, "sum", None, root, algorithm, compression, residual)

    def reduce(self, tensor, op="sum", root=0, *, out=None, compression=None, residual=None,
               algorithm="auto"):
        """Combine the tensors of all ranks on one rank.

        Returns
        -------
        On the root `tensor` (in place), or `out` if given, or a new value where `tensor` is
        immutable.  On other ranks `tensor`, unchanged; `out` is not written there, but without
        one a read-only array is an error on every rank alike.

        Other parameters and errors as `allreduce`.
        """
        return self._run("reduce", tensor, op, out, root, algorithm, compression, residual)

    @property
    def sent_nbytes(self) -> int:
        """Bytes of all messages that this rank has sent so far, but for those of `native`."""
        return sum(int(lane.counters[1]) for lane in list(self.lanes.by_index.values()))

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.allreduce(np.zeros(1, np.int8), "max")

    def close(self) -> None:
        """Free the MPI communicator; collective, unless it is broken.  Twice is harmless."""
        if self._closed:
            return
        if self._mpi.Is_finalized():
            self._closed = True
            return
        lifecycle.mpi()
        self._closed = True
        self.lanes.close()
        if not self.broken:  # else messages may still be on their way
            self._comm.Free()

    def break_off(self, call: Call, error: BaseException) -> None:
        """Note that `error` left `call` half-way: no later call can be right."""
        if self.broken is None:
            self.broken = f"{call} failed: {type(error).__name__}: {error}"
            lifecycle.at_exit(self._end_broken)

    def _end_broken(self) -> None:
        """At exit: the other ranks may wait for ever for what a broken call did not send.

        Who closes the communicator says that they do not.
        """
        if self._closed:
            return
        logging.getLogger("collectives").error(
            "[rank %d] ends with a broken communicator, and so does the job: %s", self.rank,
            self.broken)
        abort.note_status(abort.noted_status() or 1)
        abort.end_job_if_failed()

    def _run(self, verb, tensor, op, out, root, algorithm, compression, residual):
        """One call: the short way, if one like it was made before, or the long way."""
        key = None
        if type(tensor) is np.ndarray and compression is residual is None and not self._checked:
            target = plain_target(verb, tensor, out, self.rank, self.size, root)
            if target is not None:
                key = (verb, op, root, type(root), algorithm, tensor.dtype, tensor.shape,
                       target is tensor)
                if self._repeat(key, tensor, target):
                    return target

        def build():
            call = self._build(verb, tensor, op, out, root, algorithm, compression, residual)
            if key and tensor.dtype.isnative:
                call.repeat = key
            return call

        lane = self._usable_lane()
        return lane.run(self._admit(lane, build))

    def _build(self, verb, tensor, op, out, root, algorithm, compression, residual) -> Call:
        root = calls.check_common(verb, self.size, root, algorithm, compression,
                                  self.engines.one_host)
        how = algorithm, compression, residual
        if verb == "reduce_scatter":
            return calls.reduce_scatter(tensor, op, out, self.rank, self.size, *how)
        if verb == "allgather":
            return calls.allgather(tensor, out, self.size, *how)
        return calls.elementwise(verb, tensor, op, out, self.rank, root, *how)

    def _repeat(self, key: tuple, tensor: np.ndarray, target: np.ndarray) -> bool:
        """Do a call like an earlier one on other arrays; False if there was none."""
        lane = self._usable_lane()
        try:
            engine = lane.repeats.get(key)
        except TypeError:  # an argument of a wrong type: the long way says which
            return False
        if engine is None or unfinished.requests:
            return False
        lane.number += 1
        try:
            if engine.run(tensor, target, lane, SLICE):
                return True
            del lane.repeats[key]  # until it is done
        except BaseException as error:
            lane.abandon(self._again(key, tensor, target), engine, error)
            raise
        lane.resume(self._again(key, tensor, target), engine)
        return True

    def _again(self, key: tuple, tensor: np.ndarray, target: np.ndarray) -> Call:
        """The call that is being repeated, as the long way has it."""
        verb, op, root, _, algorithm, *_ = key
        out = None if target is tensor else target
        call = self._build(verb, tensor, op, out, root, algorithm, None, None)
        call.repeat = key
        return call

    def _usable_lane(self) -> Lane:
        lifecycle.mpi()
        if self._closed or self.broken:
            raise RuntimeError(f"the communicator is {'closed' if self._closed else 'broken'}"
                               + (f": {self.broken}" if self.broken else ""))
        return getattr(self.lanes.local, "lane", None) or self.lanes.mine()

    def _admit(self, lane: Lane, build) -> Call:
        """The call, with its number, and compared across ranks if that is asked for."""
        if self._checked:
            return check.admit(self, lane, build)
        call = build()
        lane.admit(call)
        return call


def _check_settings() -> None:
    """A malformed variable is an error when a communicator is made, not in a later call."""
    values = settings()
    log = logging.getLogger("collectives")
    if log.level == logging.NOTSET:
        log.setLevel(values.debug)
    known = set().union(*(calls.algorithms(verb, True) for verb in schedules.VERBS))
    if values.algorithm not in known:
        raise ValueError(f"COLLECTIVES_ALGORITHM={values.algorithm!r}: expected one of "
                         f"{', '.join(sorted(known))}")
