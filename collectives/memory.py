"""Memory that calls borrow: scratch, and the tables of plans that are not running.

One of each per lane; a lane runs one call at a time, so nothing here is locked.
"""

from collections import OrderedDict

import numpy as np

MAX_EXECUTIONS = 256  # signatures whose tables are kept


class Arena:
    """Scratch memory that is lent to calls and reused, since fresh pages are slow."""

    def __init__(self):
        self._free: list[np.ndarray] = []

    def take(self, nbytes: int) -> np.ndarray:
        """At least `nbytes` bytes; the content is anything."""
        for n, block in enumerate(self._free):
            if block.nbytes >= nbytes:
                return self._free.pop(n)
        if self._free:  # too small for this call: replaced rather than kept beside
            self._free.pop()
        return np.empty(nbytes, np.uint8)

    def give(self, block: np.ndarray) -> None:
        self._free.append(block)
        self._free.sort(key=len)

    def poison(self) -> None:
        """Fill what is free with NaN bytes: for tests that scratch is never read unwritten."""
        for block in self._free:
            block.fill(0xFF)


class Pool:
    """Engines that wait to be used again, by signature; the least recently used are dropped."""

    def __init__(self):
        self._idle: OrderedDict = OrderedDict()

    def take(self, signature):
        """An engine for `signature`, or None."""
        return self._idle.pop(signature, None)

    def give(self, signature, engine) -> None:
        self._idle[signature] = engine
        if len(self._idle) > MAX_EXECUTIONS:
            self._idle.popitem(last=False)
