"""The calls of one thread on one communicator, in order.

MPI wants the collective calls of a communicator in the same order on all ranks.  Threads have no
such order, so each thread is a *lane* of its own: its messages carry its tag and meet only those
of the thread of the same name on the other ranks.  Two threads may call at the same time and
never exchange their data by mistake; the main thread (whatever its name) is lane 0.  This
needs MPI_THREAD_MULTIPLE; without it a second thread is refused.

Within a lane calls run one after the other: a blocking call waits behind pending ones.
Nonblocking calls are progressed by a background thread per lane, in compiled code with the GIL
released; without MPI_THREAD_MULTIPLE, by `test` and `wait`.
"""

import threading
import time
from collections import deque
from zlib import crc32

import numpy as np

from collectives.calls import Call
from collectives.errors import MPIError
from collectives.memory import Arena, Pool
from collectives.stall import Watch

SLICE = 0.05  # s: how long compiled code may wait before Python looks at signals and stalls

_busy: set["Lane"] = set()  # lanes with pending requests, for `drain_all`


class Request:
    """A nonblocking call.  The result is in place, or returned by `wait`, once it is complete.

    The tensors may be neither read nor written before `wait` returns or `test` is True.
    """

    def __init__(self, lane: "Lane", call: Call):
        self._lane, self._call = lane, call
        self._work = None
        self._value = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._waited = False

    def __repr__(self) -> str:
        state = "complete" if self._done.is_set() else "pending"
        return f"<Request {self._call}: {state}>"

    def test(self) -> bool:
        """True once the call is complete; never blocks.

        Raises
        ------
        MPIError, MismatchError
            If the call failed.
        """
        if not self._done.is_set() and not self._lane.threaded:
            self._lane.progress(0.0)
        if self._done.is_set():
            self._finish()
            return True
        return False

    def wait(self, timeout: float | None = None):
        """Wait for the call and return the tensor.

        Raises
        ------
        StallError
            After `timeout` seconds; the call stays pending and may be waited for again.
        """
        if not self._done.is_set():
            watch = Watch(self._lane, self._call, timeout)
            while not self._done.is_set():
                if self._lane.threaded:
                    self._done.wait(watch.slice(SLICE))
                else:
                    self._lane.progress(watch.slice(SLICE))
                if not self._done.is_set():
                    watch.look()
        return self._finish()

    def _finish(self):
        self._waited = True
        if self._error is not None:
            raise self._error
        return self._value

    @property
    def forgotten(self) -> bool:
        """True if nobody has waited for it."""
        return not self._waited

    def _advance(self, budget: float) -> bool:
        """Run the call for a while; True once it is complete, in success or failure."""
        try:
            if self._work is None:
                self._work = self._lane.work(self._call)
            if not self._work.advance(budget):
                return False
            self._value = self._call.finish()
        except BaseException as error:
            self._error = error
        return True

    def _complete(self) -> None:
        """Let go of the tensors and wake who waits."""
        self._call.reads, self._call.writes = [], []
        self._done.set()


class Work:
    """Runs the parts of a call, one after the other."""

    def __init__(self, lane: "Lane", call: Call):
        self._lane, self._call = lane, call
        self._parts = iter(call.parts)
        self._engine = None

    def advance(self, budget: float) -> bool:
        """True once all parts are done."""
        while True:
            if self._engine is None:
                part = next(self._parts, None)
                if part is None:
                    return True
                self._engine = self._lane.communicator.engine(self._call, part, self._lane)
            try:
                if not self._engine.advance(budget):
                    return False
            except MPIError as error:
                self._lane.communicator.broken = f"{self._call} failed: {error}"
                raise
            self._engine.finish()
            if self._engine.signature is not None:
                self._lane.executions.give(self._engine.signature, self._engine)
            self._engine = None

    def waiting_for(self) -> str:
        return self._engine.waiting_for() if self._engine is not None else "its turn"


class Lane:
    """See the module docstring."""

    def __init__(self, communicator, index: int, name: str, tag: int, threaded: bool):
        self.communicator = communicator
        self.index, self.name, self.tag, self.threaded = index, name, tag, threaded
        self.number = 0
        self.current: Call | None = None
        self.pending: deque[Request] = deque()
        self.arena, self.executions = Arena(), Pool()
        self.thread = threading.current_thread()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def run(self, call: Call):
        """Do a call now and return its value."""
        self._admit(call)
        if self.pending:
            return self._enqueue(call).wait()
        work = self.work(call)
        if not work.advance(SLICE):
            watch = Watch(self, call)
            while not work.advance(watch.slice(SLICE)):
                watch.look()
        return call.finish()

    def start(self, call: Call) -> Request:
        """Start a call and return at once."""
        self._admit(call)
        return self._enqueue(call)

    def work(self, call: Call) -> Work:
        self.current = call
        return Work(self, call)

    def progress(self, budget: float) -> None:
        """Advance the oldest pending request; for lanes without a thread."""
        if self.pending and self.pending[0]._advance(budget):
            self._retire()

    def _retire(self) -> None:
        """The oldest request is complete."""
        head = self.pending.popleft()
        if not self.pending:
            _busy.discard(self)
        head._complete()

    def _admit(self, call: Call) -> None:
        self.number += 1
        call.number = self.number
        for request in list(self.pending):
            other = request._call
            if _meet(call.writes, other.reads + other.writes) or _meet(call.reads, other.writes):
                self.number -= 1
                raise ValueError(f"{call} uses memory of a pending {other}: wait for that first")

    def _enqueue(self, call: Call) -> Request:
        request = Request(self, call)
        with self._wake:
            self.pending.append(request)
            _busy.add(self)
            self._wake.notify()
        if self.threaded and self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name=f"collectives-progress-{self.index}", daemon=True)
            self._thread.start()
        return request

    def _serve(self) -> None:
        """The background thread: progress the oldest request, for ever."""
        while True:
            with self._wake:
                while not self.pending:
                    self._wake.wait()
            head = self.pending[0]
            while not head._advance(SLICE):
                self.communicator.control.answer()
            self._retire()

    def drain(self, seconds: float) -> None:
        """Wait until no request is pending, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self.pending and time.monotonic() < deadline:
            if self.threaded:
                time.sleep(0.01)
            else:
                self.progress(0.01)


def drain_all(seconds: float) -> list[Request]:
    """Complete what is pending in this process at exit; what is still pending after `seconds`."""
    deadline = time.monotonic() + seconds
    lanes = list(_busy)
    for lane in lanes:
        lane.drain(deadline - time.monotonic())
    return [request for lane in lanes for request in lane.pending]


def lane_index(name: str, lanes: int) -> int:
    """The lane of a thread that is not the main one: the same on every rank for the same name."""
    return 1 + crc32(name.encode()) % (lanes - 1)


def _meet(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """True if some element may belong to both: bounds are compared, not interleaved strides."""
    return any(np.may_share_memory(a, b) for a in some for b in others)
