"""Who has not arrived: questions and answers between ranks that wait.

A rank that has waited COLLECTIVES_STALL_SECONDS asks all others how far they are; ranks that are
inside one of our waits answer.  Who answers with an earlier call, or not at all, has not arrived.
The messages are small, go over the communicator's own duplicate with tags of their own, and flow
only once somebody has waited long.
"""

import logging
import os
import threading
import time

import numpy as np

from collectives.errors import StallError
from collectives.settings import settings

ASK_TAG, ANSWER_TAG = 0, 1
FIRST_FREE_TAG = 2
GRACE = 1.0  # s that the others have to answer; a wait looks for questions 20 times a second
YIELDING = 2e-3  # s
MAX_PAUSE = 5e-4  # s between two looks at a request of MPI's own

_log = logging.getLogger("collectives")


class Control:
    """Asks and answers on one communicator.  Questions and answers are int64 (lane, call)."""

    def __init__(self, mpi, comm, lanes: dict):
        self._mpi, self._comm, self._lanes = mpi, comm, lanes
        self._lock = threading.Lock()
        self._sent: list = []
        self._answers: dict[tuple[int, int], int] = {}

    def ask(self, lane: int) -> None:
        """Ask every other rank which call its lane is in."""
        with self._lock:
            for peer in range(self._comm.size):
                if peer != self._comm.rank:
                    self._send((lane, 0), peer, ASK_TAG)

    def answer(self) -> None:
        """Answer questions that have arrived and note answers."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while (question := self._receive(ASK_TAG)) is not None:
                peer, lane, _ = question
                known = self._lanes.get(lane)
                self._send((lane, known.number if known else 0), peer, ANSWER_TAG)
            while (reply := self._receive(ANSWER_TAG)) is not None:
                peer, lane, number = reply
                self._answers[peer, lane] = number
        except self._mpi.Exception as error:  # the call itself fails too, or a limit passes
            _log.debug("no answer to other ranks: %s", error)
        finally:
            self._lock.release()

    def missing(self, lane: int, number: int) -> list[int]:
        """The ranks that have not said that they reached call `number`."""
        others = (r for r in range(self._comm.size) if r != self._comm.rank)
        return [r for r in others if self._answers.get((r, lane), 0) < number]

    def _send(self, pair: tuple[int, int], peer: int, tag: int) -> None:
        self._sent = [(r, b) for r, b in self._sent if not r.Test()]
        message = np.array(pair, np.int64)
        self._sent.append((self._comm.Isend(message, peer, tag), message))

    def _receive(self, tag: int) -> tuple[int, int, int] | None:
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, tag, status):
            return None
        message = np.empty(2, np.int64)
        self._comm.Recv(message, status.source, tag)
        return status.source, int(message[0]), int(message[1])


class Watch:
    """Looks after one wait: answers others, warns once, raises when a limit is passed.

    what : the call, or its description;  number : of the call, in its lane
    """

    def __init__(self, lane, what, number: int, timeout: float | None = None):
        self._lane, self._what, self._number = lane, what, number
        self._control = lane.communicator.control
        self._start = time.monotonic()
        self._timeout = timeout
        self._asked: float | None = None
        self._warned = False

    def slice(self, seconds: float) -> float:
        """How long to wait before the next look."""
        if self._timeout is None:
            return seconds
        return max(0.0, min(seconds, self._start + self._timeout - time.monotonic()))

    def look(self) -> None:
        """Do what is due.

        Raises
        ------
        StallError
            If the wait's timeout or COLLECTIVES_STALL_ABORT has passed.
        """
        now, limits = time.monotonic(), settings()
        waited = now - self._start
        self._control.answer()
        warn_after = limits.stall_seconds or float("inf")
        if self._timeout is not None and waited >= self._timeout:
            self._raise(self._timeout)
        if limits.stall_abort and waited >= limits.stall_abort:
            self._raise(limits.stall_abort)
        if self._asked is None and waited >= warn_after:
            self._ask()
        elif self._asked is not None and not self._warned and now - self._asked >= GRACE:
            self._warned = True
            _log.warning(self._report(waited))

    def _ask(self) -> None:
        self._asked = time.monotonic()
        self._control.ask(self._lane.index)

    def _raise(self, limit: float) -> None:
        """Give the others a moment to say where they are, then raise."""
        if self._asked is None:
            self._ask()
            deadline = time.monotonic() + min(GRACE, max(limit, 0.2))
            while self._missing() and time.monotonic() < deadline:
                self._control.answer()
                time.sleep(0.01)
        raise StallError(self._report(time.monotonic() - self._start))

    def _missing(self) -> list[int]:
        return self._control.missing(self._lane.index, self._number)

    def _report(self, waited: float) -> str:
        lane, missing = self._lane, self._missing()
        where = "" if lane.index == 0 else f" of thread {lane.name!r}"
        who = (f"ranks that have not arrived: {missing}" if missing
               else "all ranks have arrived; a message is late, or they make different calls "
                    "(COLLECTIVES_CHECK=1 says which)")
        work = lane.current
        what = f"; waits for {work.waiting_for()}" if work and work.call is self._what else ""
        return (f"[rank {lane.communicator.rank}] {self._what}{where} has waited {waited:.1f} s; "
                f"{who}{what}")


def poll(is_done, seconds: float) -> bool:
    """Call `is_done()` until it is True, at most for `seconds`; its value.

    Between calls it yields the core, after YIELDING it sleeps.
    """
    start, pause = time.monotonic(), 1e-6
    while not is_done():
        waited = time.monotonic() - start
        if waited >= seconds:
            return False
        if waited < YIELDING:
            os.sched_yield()
            continue
        time.sleep(pause)
        pause = min(MAX_PAUSE, 2 * pause)
    return True


def meet(comm) -> None:
    """Wait until all ranks of an mpi4py communicator are here, before calls that burn the core.

    Raises
    ------
    StallError
        After COLLECTIVES_STALL_ABORT.
    """
    barrier, start, warned = comm.Ibarrier(), time.monotonic(), False
    while not poll(barrier.Test, 0.1):
        waited, limits = time.monotonic() - start, settings()
        text = (f"[rank {comm.rank}] making a Communicator has waited {waited:.1f} s for other "
                "ranks to make it too; the first collective of a program makes one")
        if limits.stall_abort and waited >= limits.stall_abort:
            raise StallError(text)
        if limits.stall_seconds and waited >= limits.stall_seconds and not warned:
            warned = True
            _log.warning(text)
