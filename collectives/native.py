"""algorithm="native": the MPI library's own collective.

The nonblocking form is used and polled, so that a late rank neither burns a core nor makes Ctrl-C
and stall reports wait.  What MPI does not define our way is prepared around the call:

    float16, bfloat16        MPI has no such types: sent as float32, rounded once
    max, min of floats       MPI leaves NaN open: compared as integers of the same order, in which
                             NaN is above (max) or below (min) all numbers
    mean                     MPI's sum, then one division
    more than 2**30 elements several calls
"""

import time

import numpy as np

from collectives.calls import Call, Part
from collectives.dtypes import accumulator

LIMIT = 1 << 30  # elements per MPI call: counts are C ints

_INTEGER = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}
_OPS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN",
        "and": "BAND", "or": "BOR"}


class NativeCall:
    """The engine of one part: as `Execution`, but MPI does the work."""

    signature = None  # not kept for later calls

    def __init__(self, mpi, comm, call: Call, part: Part):
        self._mpi, self._comm, self._call, self._part = mpi, comm, call, part
        self._source, self._result = _encode(part)
        self._requests = self._start()

    def advance(self, budget: float) -> bool:
        """True once MPI is done; polls for at most `budget` seconds."""
        deadline, pause = time.monotonic() + budget, 0.0
        while not self._mpi.Request.Testall(self._requests):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(5e-4, 2 * pause + 1e-6)
        self._store()
        return True

    def waiting_for(self) -> str:
        return "MPI's own collective"

    def finish(self) -> None:
        """Nothing was borrowed."""

    def _start(self) -> list:
        comm, verb, root = self._comm, self._call.verb, self._call.root
        op = getattr(self._mpi, _OPS[self._part.op])
        x, y = self._source, self._result
        if verb == "reduce_scatter":
            return [comm.Ireduce_scatter(x, y, list(self._part.counts), op)]
        if verb == "allgather":
            return [comm.Iallgather(x, y)]
        requests = []
        for lo in range(0, max(x.size, y.size), LIMIT):
            span = slice(lo, lo + LIMIT)
            if verb == "broadcast":
                requests.append(comm.Ibcast(y[span], root))
            elif verb == "reduce":
                requests.append(comm.Ireduce(x[span], y[span] if y.size else None, op, root))
            else:
                requests.append(comm.Iallreduce(x[span], y[span], op))
        return requests

    def _store(self) -> None:
        part = self._part
        if part.target.size:
            divisor = self._comm.size if part.op == "mean" else 1
            _decode(part, self._result, divisor)


def _encode(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """What MPI reads, and where it writes: never the same memory."""
    source = part.source
    if part.op in ("max", "min") and part.dtype in _INTEGER:
        source = _ordered(source, part)
    elif accumulator(part.dtype, part.op) != part.dtype:
        source = _widened(source, part)
    elif np.may_share_memory(source, part.target):
        source = source.copy()
    return source, np.empty(part.target.size, source.dtype)


def _decode(part: Part, result: np.ndarray, divisor: int) -> None:
    target = part.target
    if part.op in ("max", "min") and part.dtype in _INTEGER:
        target.view(result.dtype)[:] = _flipped(result)
        return
    if divisor > 1:
        result = result / result.dtype.type(divisor) if result.dtype.kind in "fc" \
            else _truncated(result, divisor)
    if part.dtype == "bfloat16":
        target[:] = _round_bfloat16(result)
    else:
        with np.errstate(over="ignore"):
            target.view(result.dtype if target.dtype == result.dtype else target.dtype)[:] = \
                result.astype(target.dtype)


def _truncated(total: np.ndarray, divisor: int) -> np.ndarray:
    quotient = total // total.dtype.type(divisor)
    if total.dtype.kind == "i":
        quotient += (total < 0) & (quotient * divisor != total)
    return quotient


def _widened(x: np.ndarray, part: Part) -> np.ndarray:
    if part.dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(accumulator(part.dtype, part.op))


def _round_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (np.where(np.isnan(x), bits | 0x00400000, rounded) >> 16).astype(np.uint16)


def _ordered(x: np.ndarray, part: Part) -> np.ndarray:
    """Signed integers in the order of the floats; NaN is the greatest (max) or least (min)."""
    kind = _INTEGER[part.dtype]
    nan = np.isnan(_widened(x, part)) if part.dtype == "bfloat16" else np.isnan(x)
    keys = _flipped(x.view(kind))
    quiet = np.iinfo(kind).max if part.op == "max" else np.iinfo(kind).min
    return np.where(nan, kind(quiet), keys)


def _flipped(bits: np.ndarray) -> np.ndarray:
    """Negative floats sort backwards as integers: flip all but their sign.  Its own inverse."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
