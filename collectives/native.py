"""algorithm="native": the MPI library's own collective.

The nonblocking form is used and polled, so that a late rank neither burns a core nor makes Ctrl-C
and stall reports wait.  What MPI does not define our way is prepared around the call:

    allgather, broadcast     bytes, whatever the elements are
    float16, bfloat16        MPI has no such types: sent as float32, rounded once
    8- and 16-bit integers   sums and products in 32 bits: Open MPI 5.0 saturates them where its AVX
                             operations run, instead of wrapping
    max, min of floats       MPI leaves NaN open: compared as integers of the same order, in which
                             NaN is above (max) or below (min) all numbers
    mean                     MPI's sum, then one division
    more than LIMIT elements several calls
"""

from itertools import accumulate, pairwise

import numpy as np

from collectives.calls import Call, Part
from collectives.dtypes import accumulator, carrier
from collectives.errors import MPIError
from collectives.rounding import narrow, widen
from collectives.stall import poll

LIMIT = 1 << 30  # elements per MPI call: counts are C ints
PIECE = 1 << 24  # elements of which converted copies are made at a time

_INTEGER = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}
_SHORT = {"int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}
_OPS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN",
        "and": "BAND", "or": "BOR"}


def native_call(mpi, comm, call: Call, part: Part):
    """The engine of one part; long ones that need converted copies are done piece by piece."""
    as_it_is = call.verb == "allreduce" and _is_plain(part)
    if call.verb in ("allreduce", "reduce") and not as_it_is and part.source.size > PIECE:
        return _Pieces(mpi, comm, call, part)
    return NativeCall(mpi, comm, call, part)


class _Pieces:
    """One `NativeCall` after the other, so that their scratch does not grow with the tensor."""

    signature = None  # not kept for later calls

    def __init__(self, mpi, comm, call: Call, part: Part):
        spans = (slice(lo, lo + PIECE) for lo in range(0, part.source.size, PIECE))
        self._calls = (
            NativeCall(mpi, comm, call, Part(part.dtype, part.op, (), part.source[span],
                                             part.target[span]))
            for span in spans)
        self._current = next(self._calls)

    def advance(self, budget: float) -> bool:
        """True once all pieces are done."""
        while self._current.advance(budget):
            following = next(self._calls, None)
            if following is None:
                return True
            self._current = following
        return False

    def waiting_for(self) -> str:
        """For stall reports."""
        return self._current.waiting_for()

    def finish(self) -> None:
        """Nothing was borrowed."""


class NativeCall:
    """The engine of one part: as `Execution`, but MPI does the work."""

    signature = None  # not kept for later calls

    def __init__(self, mpi, comm, call: Call, part: Part):
        self._mpi, self._comm, self._verb, self._part = mpi, comm, call.verb, part
        self._root = call.root
        self._gathered: list[tuple[np.ndarray, slice]] = []
        prepare = _as_bytes if call.verb in ("allgather", "broadcast") else \
            _as_it_is if call.verb == "allreduce" and _is_plain(part) else _encode
        self._source, self._result = prepare(part)
        self._requests = self._guarded(lambda: list(self._start()))

    def advance(self, budget: float) -> bool:
        """True once MPI is done; polls for at most `budget` seconds."""
        if not self._guarded(lambda: poll(self._all_done, budget)):
            return False
        self._store()
        return True

    def waiting_for(self) -> str:
        """For stall reports."""
        return "MPI's own collective"

    def finish(self) -> None:
        """Nothing was borrowed."""

    def _all_done(self) -> bool:
        return self._mpi.Request.Testall(self._requests)

    def _guarded(self, act):
        try:
            return act()
        except self._mpi.Exception as error:
            raise MPIError(
                f"{self._verb} (native) on rank {self._comm.rank}: {error}; did the ranks pass "
                "different tensors? COLLECTIVES_CHECK=1 says which") from error

    def _start(self):
        """Start MPI's calls, of LIMIT elements each."""
        comm, verb, root, x, y = self._comm, self._verb, self._root, self._source, self._result
        if verb == "reduce_scatter":
            yield from self._reduce_scatter(x, y)
            return
        op = self._op()
        for lo in range(0, x.size, LIMIT):
            span = slice(lo, min(lo + LIMIT, x.size))
            if verb == "allgather":
                rows = np.empty((comm.size, span.stop - lo), x.dtype)
                self._gathered.append((rows, span))
                yield comm.Iallgather(x[span], rows)
            elif verb == "broadcast":
                yield comm.Ibcast((x if comm.rank == root else y)[span], root)
            elif verb == "reduce":
                yield comm.Ireduce(x[span], y[span] if comm.rank == root else None, op, root)
            else:
                yield comm.Iallreduce(self._mpi.IN_PLACE if x is y else x[span], y[span], op)

    def _reduce_scatter(self, x, y):
        """Each call covers LIMIT elements of the whole; most ranks then get none of them."""
        ends = list(accumulate(self._part.counts, initial=0))
        mine = ends[self._comm.rank]
        for lo in range(0, x.size, LIMIT):
            hi = min(lo + LIMIT, x.size)
            cuts = [min(max(end, lo), hi) for end in ends]
            counts = [b - a for a, b in pairwise(cuts)]
            start = cuts[self._comm.rank] - mine
            piece = y[start:start + counts[self._comm.rank]]
            yield self._comm.Ireduce_scatter(x[lo:hi], piece, counts, self._op())

    def _op(self):
        return getattr(self._mpi, _OPS[self._part.op])

    def _store(self) -> None:
        part, rank = self._part, self._comm.rank
        if self._verb == "allgather":
            rows = part.target.view(np.uint8).reshape(self._comm.size, -1)
            for piece, span in self._gathered:
                rows[:, span] = piece
        elif self._verb == "broadcast":
            if rank != self._root:
                part.target.view(np.uint8)[:] = self._result
        elif part.target.size and (self._verb != "reduce" or rank == self._root):
            _decode(part, self._result, self._comm.size if part.op == "mean" else 1)


def _as_bytes(part: Part) -> tuple[np.ndarray, np.ndarray]:
    source = part.source.view(np.uint8)
    return source, np.empty(part.target.nbytes, np.uint8)


def _encode(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """What MPI reads, and where it writes: never the same memory."""
    source = part.source.view(carrier(part.dtype))  # sums of complex numbers as reals
    if part.op in ("max", "min") and part.dtype in _INTEGER:
        source = _ordered(source, part)
    elif _wide(part) != part.dtype:
        source = _widened(source, part)
    elif np.may_share_memory(source, part.target):
        source = source.copy()
    count = part.target.nbytes // carrier(part.dtype).itemsize
    return source, np.empty(count, source.dtype)


def _as_it_is(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The caller's own memory; one array if the call is in place."""
    target = part.target.view(carrier(part.dtype))
    in_place = np.may_share_memory(part.source, target)
    return (target if in_place else part.source.view(target.dtype)), target


def _is_plain(part: Part) -> bool:
    """True if MPI's operation is ours, so that it can work on the caller's memory."""
    ordered = part.op in ("max", "min") and part.dtype in _INTEGER
    return not ordered and _wide(part) == part.dtype


def _wide(part: Part) -> str:
    """The dtype in which MPI computes."""
    if part.dtype in _SHORT and part.op in ("sum", "prod"):
        return _SHORT[part.dtype]
    return accumulator(part.dtype, part.op)


def _decode(part: Part, result: np.ndarray, divisor: int) -> None:
    target = part.target.view(carrier(part.dtype))
    if divisor == 1 and np.may_share_memory(target, result):
        return
    if part.op in ("max", "min") and part.dtype in _INTEGER:
        target.view(result.dtype)[:] = _flipped(result)
        return
    if divisor > 1:
        result = result / result.dtype.type(divisor) if result.dtype.kind in "fc" \
            else _truncated(result, divisor)
    target[:] = narrow(result, part.dtype)


def _truncated(total: np.ndarray, divisor: int) -> np.ndarray:
    quotient = total // total.dtype.type(divisor)
    if total.dtype.kind == "i":
        quotient += (total < 0) & (quotient * divisor != total)
    return quotient


def _widened(x: np.ndarray, part: Part) -> np.ndarray:
    return widen(x, part.dtype) if part.dtype == "bfloat16" else x.astype(_wide(part))


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
