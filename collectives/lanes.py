"""Which lane the calling thread has on a communicator; see `lane.py` for what a lane is."""

import threading
from zlib import crc32

from collectives import lifecycle
from collectives.blocks import MAX_DEPTH
from collectives.lane import Lane
from collectives.stall import FIRST_FREE_TAG

MAX_LANES = 4096
MIN_TAG_UB = 32767  # what every MPI has


class Lanes:
    """The lanes of one communicator.

    by_index : lanes in use
    local : `lane` is that of the calling thread, if it has one yet
    """

    def __init__(self, communicator, mpi):
        self.by_index: dict[int, Lane] = {}
        self._communicator = communicator
        self._threaded = lifecycle.thread_multiple()
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self.local = threading.local()
        # Open MPI does not tell on communicators of one rank.
        highest = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) or MIN_TAG_UB
        tags = (highest + 1 - FIRST_FREE_TAG) // MAX_DEPTH // 2
        self._limit = min(MAX_LANES, tags)

    def mine(self) -> Lane:
        """The lane of the calling thread.

        Raises
        ------
        RuntimeError
            If the thread may not call MPI, or another one cannot be told from it.
        """
        lane = getattr(self.local, "lane", None)
        if lane is None:
            lane = self.local.lane = self._find()
        return lane

    def check_thread(self) -> None:
        """Raise RuntimeError if the calling thread may not call MPI."""
        if not self._threaded and threading.get_ident() != self._owner:
            raise RuntimeError(
                "MPI was initialised without MPI_THREAD_MULTIPLE, so only the thread that made "
                f"this communicator may use it, not {threading.current_thread().name!r}")

    def close(self) -> None:
        """Complete what is pending and end the background threads."""
        for lane in list(self.by_index.values()):
            lane.close()
        self.by_index.clear()

    def _find(self) -> Lane:
        thread = threading.current_thread()
        self.check_thread()
        index = 0 if thread is threading.main_thread() else lane_index(thread.name, self._limit)
        with self._lock:
            lane = self.by_index.get(index)
            if lane is not None and lane.thread is not thread and lane.thread.is_alive():
                raise RuntimeError(
                    f"threads {lane.thread.name!r} and {thread.name!r} cannot be told apart: give "
                    "threads that use one communicator different names, the same on every rank")
            if lane is None:
                for other in self.by_index.values():
                    other.rest()
                lane = self.by_index[index] = self._made(index, thread.name)
            lane.thread = thread
        return lane

    def _made(self, index: int, name: str) -> Lane:
        tag = FIRST_FREE_TAG + 2 * index * MAX_DEPTH
        lane = Lane(self._communicator, index, name, tag, self._threaded)
        lane.checks = Lane(self._communicator, index + self._limit, name, tag + MAX_DEPTH,
                           self._threaded)
        return lane


def lane_index(name: str, lanes: int) -> int:
    """The lane of a thread that is not the main one: the same on every rank for the same name."""
    return 1 + crc32(name.encode()) % (lanes - 1)
