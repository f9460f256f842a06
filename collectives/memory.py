"""Memory that calls borrow: scratch, and engines (a plan's tables) that are not running.

One of each per lane; a lane runs one call at a time, so nothing here is locked.
"""

import numpy as np

PAGE = 4096
MAX_EXECUTIONS = 256  # signatures whose tables are kept


class Arena:
    """Scratch memory that is lent to calls and reused, since fresh pages are slow."""

    def __init__(self):
        self._free: list[tuple[np.ndarray, int]] = []

    def take(self, nbytes: int) -> tuple[np.ndarray, int]:
        """At least `nbytes` bytes, content anything, and the first page boundary in them."""
        for n, (block, address) in enumerate(self._free):
            if block.nbytes >= nbytes + PAGE:
                del self._free[n]
                return block, address
        if self._free:  # too small for this call: replaced rather than kept beside
            self._free.pop()
        block = np.empty(nbytes + PAGE, np.uint8)
        return block, _page(block)

    def give(self, block: np.ndarray) -> None:
        self._free.append((block, _page(block)))
        self._free.sort(key=_nbytes)

    def poison(self) -> None:
        """Fill what is free with NaN bytes: for tests that scratch is never read unwritten."""
        for block, _ in self._free:
            block.fill(0xFF)


def _page(block: np.ndarray) -> int:
    return -(-block.__array_interface__["data"][0] // PAGE) * PAGE


def _nbytes(lent: tuple[np.ndarray, int]) -> int:
    return lent[0].nbytes


class Pool(dict):
    """Engines to be used again, by key; those that were given first are dropped first."""

    def give(self, key, engine) -> None:
        self[key] = engine
        if len(self) > MAX_EXECUTIONS:
            del self[next(iter(self))]
