"""Nonblocking calls in flight, and the list of those that nobody has waited for.

    started ----> running ----> complete ----> finished
       lane: when it is its turn   |              by wait() or test(), in the thread of the caller
                                   messages done; strided or immutable tensors not yet written

A request stays in the list until it is finished, whether its handle was dropped or not.  So its
memory is kept, the same calls are refused on every rank however fast each of them is, and at exit
we can say what was forgotten.
"""

import logging
import sys
import threading
import time

import numpy as np

from collectives import abort, lifecycle
from collectives.calls import Call
from collectives.errors import MPIError
from collectives.stall import Watch

SLICE = 0.05  # s: how long compiled code may wait before Python looks at signals and stalls
DRAIN_SECONDS = 10.0  # what pending requests get at exit
MANY = 10_000  # requests never waited for, of which we warn

_log = logging.getLogger("collectives")


class Request:
    """A nonblocking call.  The result is in place, or returned by `wait`, once it is complete.

    The tensors may be neither read nor written before `wait` returns or `test` is True.  Any
    thread may wait, and several may wait for the same request; without MPI_THREAD_MULTIPLE only
    the thread that made the communicator.
    """

    def __init__(self, lane, call: Call):
        self.lane, self.call = lane, call
        self._work = None
        self._value = None
        self._error: Exception | None = None
        self.completed = threading.Event()
        self._finished = False
        self._finishing = threading.Lock()

    def __repr__(self) -> str:
        state = "complete" if self.done else "pending"
        return f"<Request {self.call}: {state}>"

    @property
    def done(self) -> bool:
        """True once all messages have been exchanged, or the call has failed."""
        return self.completed.is_set()

    def test(self) -> bool:
        """True once the call is complete; never blocks.

        Raises
        ------
        MPIError
            If the call failed.
        """
        if not self.done:
            lifecycle.mpi()
            self.lane.attend(self, 0.0)
        if self.done:
            self._finish()
        return self.done

    def wait(self, timeout: float | None = None):
        """Wait for the call and return the tensor; again and again, if you like.

        Parameters
        ----------
        timeout : seconds, optional

        Raises
        ------
        StallError
            After `timeout` seconds; the call stays pending and may be waited for again.
        MPIError
            If the call failed.
        """
        if not self.done:
            self.join(Watch(self.lane, self.call, self.call.number, timeout))
        return self._finish()

    def join(self, watch: Watch) -> None:
        """Return when the call is complete; raise nothing but what `watch` does."""
        lifecycle.mpi()
        while not self.done:
            self.lane.attend(self, watch.slice(SLICE))
            if not self.done:
                watch.look()

    def step(self, budget: float) -> bool:
        """Run the call until it is idle for `budget` seconds; True once it is complete."""
        try:
            if self._work is None:
                self._work = self._begin()
            if not self._work.advance(budget):
                return False
        except BaseException as error:
            self._error = _stored(error)
            if self._work is not None:
                self._work.abandon(error)
            if not isinstance(error, Exception):  # Ctrl-C is for who runs this, not who waits
                raise
        return True

    def complete(self) -> None:
        """Wake who waits."""
        self._work = None
        self.completed.set()

    def _begin(self):
        broken = self.lane.communicator.broken
        if broken:
            raise MPIError(f"{self.call} was not started: the communicator is broken: {broken}")
        return self.lane.work(self.call)

    def _finish(self):
        """Write the result into the user's memory, once, and let go of it."""
        with self._finishing:
            if not self._finished:
                if self._error is None:
                    self._value = self.call.finish()
                self._finished = True
                self._let_go()
                unfinished.discard(self)
        if self._error is not None:
            raise self._error
        return self._value

    def _let_go(self) -> None:
        call = self.call
        call.parts, call.reads, call.writes, call.finish = [], [], [], _nothing


def _nothing() -> None:
    """What is left to do for a finished call."""


class _Unfinished:
    """The requests of this process that nobody has waited for, oldest first."""

    def __init__(self):
        self.requests: dict[Request, None] = {}
        self._lock = threading.Lock()
        self._watched = False

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self):
        with self._lock:
            return iter(list(self.requests))

    def add(self, request: Request) -> None:
        with self._lock:
            self.requests[request] = None
            number, watched, self._watched = len(self.requests), self._watched, True
        if not watched:
            lifecycle.at_exit(_drain)
        if number == MANY:
            _log.warning("%d requests were started and never waited for; their memory is kept. "
                         "The latest: %r", MANY, request)

    def discard(self, request: Request) -> None:
        with self._lock:
            self.requests.pop(request, None)

    def lanes(self) -> list:
        """The lanes that have something to do."""
        return list(dict.fromkeys(request.lane for request in self if not request.done))

    def check_apart(self, call: Call) -> None:
        """Raise ValueError if `call` uses memory of a request that was not waited for."""
        if not self.requests:
            return
        for request in self:
            other = request.call
            if _meet(call.writes, other.reads + other.writes) or _meet(call.reads, other.writes):
                raise ValueError(f"{call} uses memory of {other}, which was started and not yet "
                                 "waited for: wait for it first")


unfinished = _Unfinished()


def _meet(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """True if some element may belong to both: bounds are compared, not interleaved strides."""
    return any(np.may_share_memory(a, b) for a in some for b in others)


def _stored(error: BaseException) -> Exception:
    """What a waiting thread is told of an error: an interrupt is not its own."""
    if isinstance(error, Exception):
        return error
    return MPIError(f"the call was interrupted by {type(error).__name__} half-way")


def _drain() -> None:
    """At exit: complete what is pending, say what was forgotten, never leave MPI hanging."""
    forgotten = list(unfinished)
    deadline = time.monotonic() + DRAIN_SECONDS
    pending = [request for request in forgotten if not _completed(request, deadline)]
    for request in forgotten[:5]:
        late = f"still pending after {DRAIN_SECONDS:.0f} s" if request in pending else "complete"
        _log.warning("[rank %d] at exit: %s was never waited for; %s",
                     request.lane.communicator.rank, request.call, late)
    if len(forgotten) > 5:
        _log.warning("and %d more, %d of them pending", len(forgotten) - 5, len(pending))
    if pending:
        abort.note_status(1)
        abort.end_job_if_failed()
        sys.stderr.flush()
        lifecycle.mpi().COMM_WORLD.Abort(1)  # also where the user opted out: MPI cannot end


def _completed(request: Request, deadline: float) -> bool:
    while not request.done and time.monotonic() < deadline:
        request.lane.attend(request, SLICE)
    return request.done
