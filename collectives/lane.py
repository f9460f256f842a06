"""The calls of one thread on one communicator, in order.

MPI wants the collective calls of a communicator in the same order on all ranks.  Threads have no
such order, so each thread is a *lane* of its own: its messages carry its tag and meet only those
of the thread of the same name on the other ranks.  Two threads may call at the same time and
never exchange their data by mistake; the main thread (whatever its name) is lane 0.  This
needs MPI_THREAD_MULTIPLE; without it a second thread is refused.

Within a lane calls run one after the other: a blocking call waits behind pending ones.
Nonblocking calls are progressed by a background thread per lane, in compiled code with the GIL
released; it ends when it has had nothing to do for a second.  Without MPI_THREAD_MULTIPLE no
other thread may call MPI: each wait, test and blocking call then progresses all pending ones of
the process, so that ranks may wait for them in different orders.

A call that was left half-way (an MPI error, Ctrl-C or a stall limit in a blocking call) cannot be
resumed, and its late messages would meet those of the next: the communicator is then broken.
"""

import threading
import time
from collections import deque

import numpy as np

from collectives.calls import Call
from collectives.memory import Arena, Pool
from collectives.request import SLICE, Request, unfinished
from collectives.stall import Watch

IDLE = 1.0  # s without a request after which a background thread ends
TURN = 5e-4  # s that each lane gets where one thread progresses several

_abandoned: list["Work"] = []  # MPI may still write to their memory, so it is never freed


class Work:
    """Runs the parts of a call, one after the other; `engine` already runs the first."""

    def __init__(self, lane: "Lane", call: Call, engine=None):
        self._lane, self.call = lane, call
        self._parts = iter(call.parts if engine is None else call.parts[1:])
        self._engine = engine
        self._started = engine is not None

    def advance(self, budget: float) -> bool:
        """True once all parts are done; False after `budget` seconds without progress."""
        while True:
            if self._engine is None:
                part = next(self._parts, None)
                if part is None:
                    self._lane.current = None
                    return True
                self._engine = self._lane.communicator.engines.start(
                    self.call, part, self._lane)
                self._started = True
            if not self._engine.advance(budget):
                return False
            self._engine.finish()
            self._lane.keep(self.call, self._engine)
            self._engine = None

    def abandon(self, error: BaseException) -> None:
        """After `error` left the call half-way; one that has sent nothing breaks nothing."""
        if not self._started and isinstance(error, Exception):
            return
        _abandoned.append(self)
        self._lane.communicator.break_off(self.call, error)

    def waiting_for(self) -> str:
        """What the call waits for, for stall reports."""
        engine = self._engine
        return engine.waiting_for() if engine is not None else "its turn"


class Lane:
    """See the module docstring.

    thread : whose calls these are; a later thread of the same name continues the lane
    number : of the latest call
    checks : the lane on which COLLECTIVES_CHECK compares this lane's calls
    counters : int64 (2,), messages and bytes sent so far, see `frame`
    """

    def __init__(self, communicator, index: int, name: str, tag: int, threaded: bool):
        self.communicator = communicator
        self.index, self.name, self.tag, self.threaded = index, name, tag, threaded
        self.number = 0
        self.current: Work | None = None
        self.pending: deque[Request] = deque()
        self.arena, self.executions, self.repeats = Arena(), Pool(), Pool()
        self.counters = np.zeros(2, np.int64)
        self.thread = threading.current_thread()
        self._wake = threading.Condition()
        self._background: threading.Thread | None = None
        self._closing = False
        self.checks: Lane | None = None

    def admit(self, call: Call) -> None:
        """Give a call its number.

        Raises
        ------
        ValueError
            If it uses memory of a call that is not finished.
        """
        call.number = self.number + 1
        unfinished.check_apart(call)
        self.number += 1

    def run(self, call: Call, watch: Watch | None = None):
        """Do a call now and return its value; `watch` looks after it if it takes long."""
        if self.pending or (not self.threaded and unfinished.lanes()):
            return self._run_queued(call, watch)
        self._complete(self.work(call), watch)
        return call.finish()

    def _complete(self, work: Work, watch: Watch | None = None) -> None:
        try:
            if not work.advance(SLICE):
                watch = watch or Watch(self, work.call, work.call.number)
                watch.look()
                while not work.advance(watch.slice(SLICE)):
                    watch.look()
        except BaseException as error:
            work.abandon(error)
            raise

    def keep(self, call: Call, engine) -> None:
        """Keep an engine that is done for later calls of the same kind."""
        if engine.signature is None:  # MPI's own collective: nothing to keep
            return
        if call.repeat is not None:
            self.repeats.give(call.repeat, engine)
        else:
            self.executions.give(engine.signature, engine)

    def resume(self, call: Call, engine) -> None:
        """Go on with a call of one part that `engine` has begun, and that takes long."""
        call.number = self.number
        self.current = Work(self, call, engine)
        self._complete(self.current)

    def abandon(self, call: Call, engine, error: BaseException) -> None:
        """`error` left a call half-way that `engine` has begun."""
        call.number = self.number
        Work(self, call, engine).abandon(error)

    def _run_queued(self, call: Call, watch: Watch | None):
        request = self.start(call)
        try:
            request.join(watch or Watch(self, call, call.number))
        except BaseException as error:
            if not request.done:
                self.communicator.break_off(call, error)
            raise
        return request.wait()

    def start(self, call: Call) -> Request:
        """Start a call and return at once."""
        request = Request(self, call)
        unfinished.add(request)
        with self._wake:
            self.pending.append(request)
            if self.threaded and self._background is None:
                self._background = threading.Thread(
                    target=self._serve, name=f"collectives-progress-{self.index}", daemon=True)
                self._background.start()
            self._wake.notify()
        return request

    def work(self, call: Call) -> Work:
        self.current = Work(self, call)
        return self.current

    def attend(self, request: Request, budget: float) -> None:
        """Wait up to `budget` seconds for a request of this lane, and progress it if need be."""
        if self.threaded:
            if budget > 0:
                request.completed.wait(budget)
            return
        self.communicator.lanes.check_thread()
        lanes = unfinished.lanes()
        if len(lanes) == 1:
            lanes[0].progress(budget)
            return
        deadline = time.monotonic() + budget
        while not request.done:
            for lane in lanes:
                lane.progress(TURN)
            if time.monotonic() >= deadline:
                return
            time.sleep(TURN)

    def progress(self, budget: float) -> None:
        """Advance the oldest pending request; for lanes without a background thread."""
        if self.pending:
            try:
                if not self.pending[0].step(budget):
                    return
            except BaseException:
                self._retire()
                raise
            self._retire()

    def _serve(self) -> None:
        """The background thread: progress the oldest request, then the next."""
        while (head := self._next()) is not None:
            while not head.step(SLICE):
                self.communicator.control.answer()
            self._retire()

    def _next(self) -> Request | None:
        """The oldest pending request; None when it is time to end."""
        with self._wake:
            self._wake.wait_for(lambda: self.pending or self._closing, IDLE)
            if self.pending:
                return self.pending[0]
            self._background = None
            return None

    def _retire(self) -> None:
        """The oldest request is complete."""
        with self._wake:
            head = self.pending.popleft()
        head.complete()

    def close(self) -> None:
        """Complete what is pending and end the background thread."""
        for request in list(self.pending):
            request.join(Watch(self, request.call, request.call.number))
        with self._wake:
            self._closing = True
            background = self._background
            self._wake.notify()
        if background is not None:
            background.join()

    def rest(self) -> None:
        """Let go of memory, if the lane's thread has ended and nothing is pending."""
        if not self.pending and not self.thread.is_alive():
            self.arena, self.executions, self.repeats = Arena(), Pool(), Pool()
            self.current = None
