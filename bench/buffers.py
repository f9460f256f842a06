"""Inputs whose reduction is known exactly, in buffers that the caches have forgotten.

Rank r puts (r + 1)(i + 1) mod m into element i (m prime), so the ranks differ from each other, an
element differs from its neighbours, and chunks that got swapped show, because no chunk length is
a multiple of m in practice.  m is small enough for the sum over all ranks to be an exact integer
of the dtype: any order of additions gives the same bits.

A pool is twice as large as the last-level cache of its host, all ranks together.  Sample after
sample takes the next slot; when none is left, all results are checked, and the slots filled anew:

    slot        0        1        2       ...
    send     | input  | input  | input  | ...      in place, send and recv are
    recv     | poison | poison | poison | ...      the same memory
"""

from pathlib import Path

import numpy as np
from mpi4py import MPI

LINE_NBYTES = 64  # slots begin on different cache lines
POISON = 0xAA
PRIMES = (251, 127, 61, 31, 13, 7, 5, 3)
REDUCE = {"sum": np.sum, "mean": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def _finfo(dtype: np.dtype):
    if dtype.kind in "fc":
        return np.finfo(dtype)
    import ml_dtypes  # numpy's finfo does not know bfloat16
    return ml_dtypes.finfo(dtype)


def modulus(dtype: np.dtype, size: int) -> int:
    """The largest prime of ours with which the sum over `size` ranks is exact in `dtype`."""
    exact = np.iinfo(dtype).max if dtype.kind in "iu" else 2 ** (_finfo(dtype).nmant + 1)
    for m in PRIMES:
        if size * (m - 1) <= exact:
            return m
    raise ValueError(f"{dtype} cannot hold the sum of {size} ranks exactly; use a wider dtype")


def inputs(op: str, dtype: np.dtype, size: int) -> np.ndarray:
    """One period of every rank's input: int64, shape (size, m)."""
    m = modulus(dtype, size)
    values = np.outer(np.arange(1, size + 1), np.arange(1, m + 1)) % m
    # A product stays small if few factors are not 1: in each element, one rank in m has a 2.
    return 1 + (values == 1) if op == "prod" else values


def expected(op: str, dtype: np.dtype, size: int) -> np.ndarray:
    """One period of the reduction: `dtype`, shape (m,)."""
    total = REDUCE[op](inputs(op, dtype, size), axis=0)
    if op == "mean":
        total = total // size if dtype.kind in "iu" else total / size
    return total.astype(dtype)


def tolerance(op: str, dtype: np.dtype) -> float:
    """Relative error of a right answer: 0, but for the one division in a mean.

    total / p and total * (1 / p) are both right.  The first is off by half a unit in the last
    place, the second by twice that, and an ulp is at most eps: 1.5 eps between them, 2 to be safe.
    """
    return 2 * float(_finfo(dtype).eps) if op == "mean" and dtype.kind not in "iu" else 0.0


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
    """Rotating buffers of `count` elements that check what the contenders left in them.

    slack : float, shape (contenders,)
        How far off an element of each contender's results may be; 0 where it must be exact.

    Attributes
    ----------
    wrong : int64, shape (contenders,)
        Elements of results found wrong so far, on this rank.
    """

    def __init__(self, comm, count, dtype, op, in_place, slack, slots=None):
        self.input = np.resize(inputs(op, dtype, comm.size)[comm.rank], count).astype(dtype)
        self.expected = np.resize(expected(op, dtype, comm.size), count)
        self.tolerance = tolerance(op, dtype)
        self.slack = np.array(slack)
        self.wrong = np.zeros(len(slack), np.int64)
        row_nbytes = -(-max(count * dtype.itemsize, 1) // LINE_NBYTES) * LINE_NBYTES
        if slots is None:
            slots = max(1, default_pool_nbytes(comm) // (row_nbytes * (1 if in_place else 2)))
        self.send = np.empty((slots, row_nbytes // dtype.itemsize), dtype)
        self.recv = self.send if in_place else np.empty_like(self.send)
        self.owner = np.empty(slots, np.int64)  # which contender used the slot
        self._refill(slots)

    def take(self, contender: int) -> tuple[np.ndarray, np.ndarray]:
        """The next pair (send, recv), ready for use; one array twice if in place."""
        if self.used == len(self.owner):
            self.check()
        slot, count = self.used, self.input.size
        self.owner[slot] = contender
        self.used += 1
        send = self.send[slot, :count]
        return send, send if self.recv is self.send else self.recv[slot, :count]

    def check(self) -> None:
        """Count the wrong elements in all slots used since the last time, and refill those."""
        used, count = self.used, self.input.size
        bad = self._differ(self.recv[:used, :count], self.slack[self.owner[:used]])
        if self.recv is not self.send:  # out of place also means that the input is as it was
            bad = bad + np.count_nonzero(self.send[:used, :count] != self.input, axis=1)
        np.add.at(self.wrong, self.owner[:used], bad)
        self._refill(used)

    def _differ(self, results, slack) -> np.ndarray:
        """How many elements of each row are wrong; a NaN is."""
        if self.tolerance == 0.0 and not slack.any():
            return np.count_nonzero(results != self.expected, axis=1)
        want = self.expected.astype(np.promote_types(np.float32, self.expected.dtype))
        near = np.abs(results - want) <= self.tolerance * np.abs(want) + slack[:, None]
        return np.count_nonzero(~near, axis=1)

    def _refill(self, used: int) -> None:
        """Input and poison back into the first `used` slots."""
        self.recv[:used].view(np.uint8).fill(POISON)
        self.send[:used, : self.input.size] = self.input
        self.used = 0
