"""Buffers that the caches have forgotten, and that check what the contenders left in them.

A pool is twice as large as the last-level cache of its host, all ranks together.  Sample after
sample takes the next slot; when none is left, all results are checked, and the slots filled anew:

    slot        0        1        2       ...
    send     | given  | given  | given  | ...      in place, send and recv are
    recv     | poison | poison | poison | ...      the same memory
"""

from pathlib import Path

import numpy as np
from collective import POISON, Exchange
from mpi4py import MPI

LINE_NBYTES = 64  # slots begin on different cache lines


def cache_nbytes() -> int:
    """Size of the last-level cache; 32 MiB where the system does not tell."""
    sizes = [path.read_text().strip()
             for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(s[:-1]) << 10 for s in sizes if s.endswith("K")), default=32 << 20)


def default_pool_nbytes(comm: MPI.Comm) -> int:
    """This rank's part of a pool of twice the last-level cache of its host."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return 2 * cache_nbytes() // host.size
    finally:
        host.Free()


class Pool:
    """Rotating buffers for an exchange.

    slack : float, shape (contenders,)
        How far off an element of each contender's results may be; 0 where it must be exact.
    nbytes : int
        How large the pool should be; it has one slot at least.
    slots : int, optional
        How many it has, whatever their size.

    Attributes
    ----------
    wrong : int64, shape (contenders,)
        Elements of results found wrong so far, on this rank.
    """

    def __init__(self, exchange: Exchange, slack, nbytes: int, slots: int | None = None):
        self.exchange = exchange
        self.slack = np.array(slack)
        self.wrong = np.zeros(len(slack), np.int64)
        rows = [_row_nbytes(exchange.given)]
        if not exchange.in_place:
            rows.append(_row_nbytes(exchange.wanted))
        slots = slots or max(1, nbytes // sum(rows))
        arrays = [np.empty((slots, row // exchange.given.itemsize), exchange.given.dtype)
                  for row in rows]
        self.send, self.recv = arrays[0], arrays[-1]
        self.owner = np.empty(slots, np.int64)  # which contender used the slot
        self._refill(slots)

    def take(self, contender: int) -> tuple[np.ndarray, np.ndarray]:
        """The next pair (send, recv), ready for use; one array twice if in place."""
        if self.used == len(self.owner):
            self.check()
        slot = self.used
        self.owner[slot] = contender
        self.used += 1
        send = self.send[slot, : self.exchange.given.size]
        if self.exchange.in_place:
            return send, send
        return send, self.recv[slot, : self.exchange.wanted.size]

    def check(self) -> None:
        """Count the wrong elements in all slots used since the last time, and refill those."""
        used, given, wanted = self.used, self.exchange.given, self.exchange.wanted
        bad = self._differ(self.recv[:used, : wanted.size], self.slack[self.owner[:used]])
        if not self.exchange.in_place:  # this also means that the input is as it was
            bad = bad + np.count_nonzero(self.send[:used, : given.size] != given, axis=1)
        np.add.at(self.wrong, self.owner[:used], bad)
        self._refill(used)

    def _differ(self, results, slack) -> np.ndarray:
        """How many elements of each row are wrong; a NaN is."""
        wanted, tolerance = self.exchange.wanted, self.exchange.tolerance
        if tolerance == 0.0 and not slack.any():
            return np.count_nonzero(results != wanted, axis=1)
        want = wanted.astype(np.promote_types(np.float32, wanted.dtype))
        near = np.abs(results - want) <= tolerance * np.abs(want) + slack[:, None]
        return np.count_nonzero(~near, axis=1)

    def _refill(self, used: int) -> None:
        """Input and poison back into the first `used` slots."""
        self.recv[:used].view(np.uint8).fill(POISON)
        self.send[:used, : self.exchange.given.size] = self.exchange.given
        self.used = 0


def _row_nbytes(array: np.ndarray) -> int:
    """Whole cache lines for the array."""
    return -(-max(array.nbytes, 1) // LINE_NBYTES) * LINE_NBYTES
