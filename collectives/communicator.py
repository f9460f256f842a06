"""Communicator: a private duplicate of an MPI communicator, with its plans and lanes."""

import threading

import numpy as np

from collectives import calls, check, lifecycle, schedules, tuning
from collectives.blocks import MAX_DEPTH
from collectives.calls import Call, Part
from collectives.lane import Lane, Request, lane_index
from collectives.placement import Placement
from collectives.plan import Signature, lower
from collectives.settings import settings
from collectives.stall import FIRST_FREE_TAG, Control

MAX_LANES = 4096
# Rounds over the blocks in flight before a waiting rank yields its core.
SPIN, SPIN_OVERSUBSCRIBED = 2000, 20


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
        settings()  # a malformed variable is an error here, not in the first call
        self._comm = mpi_comm.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.placement = Placement.of(self._comm)
        self.broken: str | None = None
        self._closed = False
        self._lanes: dict[int, Lane] = {}
        self._spin = SPIN_OVERSUBSCRIBED if self.placement.oversubscribed else SPIN
        self._lane_lock = threading.Lock()
        self._local = threading.local()
        self.control = Control(mpi, self._comm, self._lanes)
        self._threads = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self._owner = threading.get_ident()
        tags = (self._comm.Get_attr(mpi.TAG_UB) + 1 - FIRST_FREE_TAG) // MAX_DEPTH
        self._max_lanes = min(MAX_LANES, tags)

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
            Before any message: unsupported dtype, op or layout, an array that cannot be written.
        MPIError
            If MPI fails; the communicator is then broken.

        Examples
        --------
        >>> allreduce(np.array([1.0, 2.0]), op="mean")      # doctest: +SKIP
        """
        return self._run(lambda: self._elementwise(
            "allreduce", tensor, op, out, 0, algorithm, compression, residual))

    def iallreduce(self, tensor, op="sum", *, out=None, compression=None, residual=None,
                   algorithm="auto") -> Request:
        """Start an allreduce; parameters and errors as `allreduce`.

        Returns
        -------
        Request : `.test() -> bool`, `.wait(timeout=None)` returns what `allreduce` would.
            Until then the tensor may be neither read nor written.  Any number may be in flight
            and be waited for in any order.
        """
        call = self._prepare(lambda: self._elementwise(
            "allreduce", tensor, op, out, 0, algorithm, compression, residual))
        return self._lane().start(call)

    def reduce_scatter(self, tensor, op="sum", *, out=None, compression=None, residual=None,
                       algorithm="auto"):
        """Combine the tensors of all ranks; every rank gets its rows.

        Returns
        -------
        `out`, or a new tensor: `np.array_split(combined, size)[rank]`, that is the rows (entries
        of the first axis) of this rank; the first ranks get one more where they do not divide.
        `tensor` is not changed.

        Other parameters and errors as `allreduce`.
        """
        def build():
            calls.check_common("reduce_scatter", self.size, 0, algorithm, compression, residual)
            return calls.reduce_scatter(tensor, op, out, self.rank, self.size, algorithm)
        return self._run(build)

    def allgather(self, tensor, *, out=None, compression=None, residual=None, algorithm="auto"):
        """Give every rank the tensors of all.

        Returns
        -------
        `out`, or a new tensor of shape (size, *tensor.shape), entry r from rank r.

        Other parameters and errors as `allreduce`; tensors have equal shapes on all ranks.
        """
        def build():
            calls.check_common("allgather", self.size, 0, algorithm, compression, residual)
            return calls.allgather(tensor, out, self.size, algorithm)
        return self._run(build)

    def broadcast(self, tensor, root=0, *, compression=None, residual=None, algorithm="auto"):
        """Give every rank the root's tensor, in place.

        Returns
        -------
        `tensor`, or a new value where it is immutable.  All ranks pass tensors of equal shape
        and dtype.

        Other parameters and errors as `allreduce`.
        """
        return self._run(lambda: self._elementwise(
            "broadcast", tensor, "sum", None, root, algorithm, compression, residual))

    def reduce(self, tensor, op="sum", root=0, *, out=None, compression=None, residual=None,
               algorithm="auto"):
        """Combine the tensors of all ranks on one rank.

        Returns
        -------
        On the root `tensor` (in place), or `out` if given, or a new value where `tensor` is
        immutable.  On other ranks `tensor`, unchanged; `out` is ignored there.

        Other parameters and errors as `allreduce`.
        """
        return self._run(lambda: self._elementwise(
            "reduce", tensor, op, out, root, algorithm, compression, residual))

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._run(lambda: self._elementwise(
            "allreduce", np.zeros(1, np.int8), "max", None, 0, "recursive_doubling", None, None))

    def close(self) -> None:
        """Free the MPI communicator; collective.  Closing twice is harmless."""
        if self._closed:
            return
        for lane in list(self._lanes.values()):
            lane.drain(float("inf"))
        self._closed = True
        self._lanes.clear()
        if not self._mpi.Is_finalized():
            self._comm.Free()

    def _elementwise(self, verb, tensor, op, out, root, algorithm, compression, residual) -> Call:
        calls.check_common(verb, self.size, root, algorithm, compression, residual)
        return calls.elementwise(verb, tensor, op, out, self.rank, root, algorithm)

    def _run(self, build):
        call = self._prepare(build)
        return self._lane().run(call)

    def _prepare(self, build) -> Call:
        """The call, compared across ranks if that is asked for."""
        lifecycle.mpi()
        if self._closed or self.broken:
            raise RuntimeError(f"the communicator is {'closed' if self._closed else 'broken'}"
                               + (f": {self.broken}" if self.broken else ""))
        if not settings().check or self.size == 1:
            return build()
        try:
            call = build()
        except (TypeError, ValueError, NotImplementedError) as error:
            self._compare(f"raised {type(error).__name__}: {error}")
            raise
        self._compare(str(call))
        return call

    def _compare(self, description: str) -> None:
        lane = self._lane()
        text = f"after {lane.number} calls: {description}, segment={settings().segment}"
        check.compare(lambda x: self._exchange(lane, x), text, self.rank)

    def _exchange(self, lane: Lane, x: np.ndarray) -> np.ndarray:
        call = calls.allgather(x, None, self.size, "recursive_doubling")
        return lane.run(call)

    def _lane(self) -> Lane:
        """The lane of the calling thread."""
        lane = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = self._new_lane()
        return lane

    def _new_lane(self) -> Lane:
        thread = threading.current_thread()
        if not self._threads and threading.get_ident() != self._owner:
            raise RuntimeError(
                "MPI was initialised without MPI_THREAD_MULTIPLE, so only the thread that made "
                f"this communicator may use it, not {thread.name!r}")
        main = thread is threading.main_thread()
        index = 0 if main else lane_index(thread.name, self._max_lanes)
        with self._lane_lock:
            lane = self._lanes.get(index)
            if lane is not None and lane.thread is not thread and lane.thread.is_alive():
                raise RuntimeError(
                    f"threads {lane.thread.name!r} and {thread.name!r} cannot be told apart: give "
                    "threads that use one communicator different names, the same on every rank")
            if lane is None:
                tag = FIRST_FREE_TAG + index * MAX_DEPTH
                lane = self._lanes[index] = Lane(self, index, thread.name, tag, self._threads)
            lane.thread = thread
        return lane

    def engine(self, call: Call, part: Part, lane: Lane):
        """What runs one part of a call: started, to be advanced until it is done."""
        algorithm = self._algorithm(call, part)
        if algorithm == "native":
            from collectives.native import NativeCall
            if lane.index:
                raise ValueError("algorithm='native' may be used from the main thread only")
            return NativeCall(self._mpi, self._comm, call, part)
        from collectives.execution import Execution  # importing it needs MPI
        source, target = part.source.ctypes.data, part.target.ctypes.data
        signature = Signature(
            call.verb, algorithm, self.rank, self.size, call.root, part.counts, part.dtype,
            part.op, source == target, settings().segment or tuning.DEFAULT_SEGMENT)
        execution = lane.executions.take(signature) or Execution(
            lower(signature), self._comm, self.size, self._spin)
        execution.start(source, target, lane.tag, lane.arena)
        return execution

    def _algorithm(self, call: Call, part: Part) -> str:
        if call.algorithm != "auto":
            return call.algorithm
        forced = settings().algorithm
        if forced in ("native", *schedules.algorithms(call.verb)):
            return forced
        return tuning.choose(call.verb, part.nbytes, self.size)
