"""One call among all ranks of one host: what each stage of `whole_host` has to do, and where."""

import ctypes
import mmap
import platform
from hashlib import blake2b

import numpy as np

from collectives import segment
from collectives import whole_host as host
from collectives.dtypes import accumulator, itemsize
from collectives.errors import MPIError
from collectives.kernels.reduce import reduce_kernel
from collectives.plan import Signature

SLOT_NBYTES = 1 << 18  # two for each rank
# Up to here each rank reduces everything itself: one synchronisation instead of two.
SHORT_NBYTES = 1 << 13
# Looks at a counter in the time of one round of `waiting.SPIN`.  Two ranks that call within 20 us
# of each other so never yield: an 8-byte allreduce took 4.5 us, with a tenth of it 8 us.
ROUNDS = 25
WIDEST = 8  # bytes of an accumulator for each byte of a tensor: the mean of int8
CHUNK_ALIGN = 64  # bytes: no two ranks write to one cache line of a slot


def _ids_are_addresses() -> bool:
    """Whether compiled code finds an array's data where CPython and NumPy's C API keep it."""
    probe = np.zeros(1)
    return (platform.python_implementation() == "CPython"
            and ctypes.c_void_p.from_address(id(probe) + host.DATA).value == probe.ctypes.data)


# Asking NumPy for an address takes 1 to 3 us, as long as a short call.
_IDS = _ids_are_addresses()


class HostMemory:
    """One rank's view of the slots and counters that all ranks of a host share.

    order : int64 (2,), see `whole_host.NEXT`
    partial : memory for the partial results of a block, in the accumulator's type; one for all
        calls, since they run one after the other
    """

    def __init__(self, memory: np.ndarray, size: int):
        """memory : uint8 (nbytes(size),), from a page's start, the same on all ranks; zeros."""
        self._memory = memory  # keeps it mapped
        self.lines = memory.ctypes.data
        self.slots = self.lines + _lines_nbytes(size)
        self.order = np.zeros(2, np.int64)
        self.partial = np.empty(SLOT_NBYTES * WIDEST, np.uint8)

    @classmethod
    def shared(cls, comm) -> "HostMemory | None":
        """That of a communicator whose ranks are all on one host; None where there is none.

        Collective over the mpi4py communicator `comm`; the same on all ranks.
        """
        memory, _, _ = segment.share(comm, list(range(comm.size)), cls.nbytes(comm.size))
        return None if memory is None else cls(memory, comm.size)

    @staticmethod
    def nbytes(size: int) -> int:
        """Of address space; what no message was long enough for is no memory."""
        return _lines_nbytes(size) + 2 * size * SLOT_NBYTES


def _lines_nbytes(size: int) -> int:
    return -(-size * host.LINE_NBYTES // mmap.PAGESIZE) * mmap.PAGESIZE


class HostExecution:
    """Runs calls of one signature, one at a time."""

    def __init__(self, s: Signature, memory: HostMemory, spin: int, counters: np.ndarray):
        self.signature = s
        self._keep = memory, counters  # their addresses are among the words
        self._words, self._regions = _words(s), _regions(s)
        self._words[[host.LINES, host.SLOTS]] = memory.lines, memory.slots
        self._words[[host.SLOT_NBYTES, host.SPIN]] = SLOT_NBYTES, ROUNDS * spin
        self._words[[host.ORDER, host.COUNTERS]] = memory.order.ctypes.data, counters.ctypes.data
        self._words[host.REGIONS] = self._regions.ctypes.data
        self._words[host.PARTIAL] = memory.partial.ctypes.data
        self._advance = host.compiled()
        self._begin, self._source, self._target = host.GOING_ON, 0, 0

    def start(self, source: int, target: int) -> None:
        """Begin a call on the buffers at these addresses."""
        self._begin, self._source, self._target = host.ADDRESSES, source, target

    def run(self, source: np.ndarray, target: np.ndarray, lane, budget: float) -> bool:
        """A whole call; False if it has been idle for `budget` seconds and is to be advanced."""
        if not _IDS:
            self.start(source.ctypes.data, target.ctypes.data)
            return self.advance(budget)
        outcome = self._advance(self._words, host.ARRAYS, id(source), id(target), budget)
        return outcome == host.FINISHED or self._unfinished(outcome)

    def advance(self, budget: float) -> bool:
        """Run until done (True) or idle for `budget` seconds (False).

        Raises
        ------
        MPIError
            If another rank makes a different call; this one cannot be continued.
        """
        outcome = self._advance(self._words, self._begin, self._source, self._target, budget)
        self._begin = host.GOING_ON
        return outcome == host.FINISHED or self._unfinished(outcome)

    def _unfinished(self, outcome: int) -> bool:
        if outcome == host.PENDING:
            return False
        s = self.signature
        raise MPIError(
            f"{s.verb} (shared) on rank {s.rank}: rank {self._words[host.PEER]} is in a call of "
            f"another verb, size, dtype, op or root; expected {s.dtype}{list(s.counts)}, "
            f"op={s.op}, root={s.root}: COLLECTIVES_CHECK=1 says which")

    def finish(self) -> None:
        """Nothing is borrowed."""

    def waiting_for(self) -> str:
        """What the call waits for, for stall reports."""
        w = self._words
        return f"block {w[host.BLOCK]} of {w[host.BLOCKS]}, shared memory of this host"


def _words(s: Signature) -> np.ndarray:
    """What a call of `s` comes to, but for addresses of memory."""
    w = np.zeros(host.WORDS, np.int64)
    item, longest = itemsize(s.dtype), _longest(s)
    step = _step(s)
    w[[host.RANK, host.SIZE, host.ROOT]] = s.rank, s.size, s.root
    w[[host.ITEM, host.COUNT, host.STEP]] = item, longest, step
    w[[host.BLOCKS, host.ALIGN]] = -(-longest // step), CHUNK_ALIGN // item
    w[[host.GIVES, host.REDUCES, host.TAKES, host.AWAITS]] = _stages(s)
    w[host.PER_RANK] = s.verb in ("reduce_scatter", "allgather")
    w[host.TARGET_OWN] = s.verb == "reduce_scatter"
    w[host.TO_TARGET] = s.verb != "reduce" or s.rank == s.root
    w[host.KEEPS] = s.verb == "allreduce" or (s.verb == "reduce" and s.rank != s.root)
    w[host.IDENTITY] = _identity(s)
    w[host.DIVISOR], w[host.SENT_NBYTES] = s.size, _sent_nbytes(s)
    if w[host.REDUCES]:
        acc, partial = accumulator(s.dtype, s.op), "sum" if s.op == "mean" else s.op
        w[host.FIRST] = reduce_kernel(partial, s.dtype, s.dtype, acc, acc)
        w[host.MIDDLE] = reduce_kernel(partial, acc, s.dtype, acc, acc)
        first = s.dtype if s.size == 2 else acc
        w[host.LAST] = reduce_kernel(s.op, first, s.dtype, s.dtype, acc)
    return w


def _stages(s: Signature) -> tuple[int, int, int, int]:
    """What this rank gives, reduces and takes, and whom it awaits: the table of `whole_host`."""
    root = s.rank == s.root
    if s.verb == "allgather":
        return host.OWN, host.NONE, host.OTHERS, host.WHOLE
    if s.verb == "broadcast":
        return (host.WHOLE if root else host.NONE), host.NONE, host.WHOLE, host.ROOTS
    if s.verb == "reduce_scatter":
        return host.OTHERS, host.OWN, host.NONE, host.WHOLE
    if not _is_short(s):
        takes = host.OTHERS if s.verb == "allreduce" or root else host.NONE
        return host.OTHERS, host.OWN, takes, host.WHOLE
    if s.verb == "allreduce":
        return host.WHOLE, host.WHOLE, host.NONE, host.WHOLE
    if root:
        return host.NONE, host.WHOLE, host.NONE, host.WHOLE
    return host.WHOLE, host.NONE, host.NONE, host.NONE


def _is_short(s: Signature) -> bool:
    return sum(s.counts) * itemsize(s.dtype) <= SHORT_NBYTES


def _longest(s: Signature) -> int:
    """Elements that are cut into blocks: the tensor, or the longest chunk."""
    return max(s.counts, default=0)


def _step(s: Signature) -> int:
    """Elements of a block; of each chunk in a block, where a rank's slot holds one for each."""
    item = itemsize(s.dtype)
    nbytes = min(SLOT_NBYTES, max(s.segment, CHUNK_ALIGN * s.size))
    if s.verb == "reduce_scatter":
        return max(1, nbytes // s.size // CHUNK_ALIGN * CHUNK_ALIGN // item)
    return nbytes // item


def _regions(s: Signature) -> np.ndarray:
    """First element and length of each rank's chunk: int64 (size, 2)."""
    counts = np.array(s.counts, np.int64)
    return np.stack([np.cumsum(counts) - counts, counts], axis=1)


def _sent_nbytes(s: Signature) -> int:
    """Bytes that this rank copies into its slots in a call, for others to read."""
    gives, *_ = _stages(s)
    total, item = sum(s.counts), itemsize(s.dtype)
    if s.verb == "allgather":
        return s.counts[s.rank] * item
    if s.verb == "reduce_scatter":
        return (total - s.counts[s.rank]) * item
    return total * item if gives else 0


def _identity(s: Signature) -> int:
    """64 bits that only calls of one kind have in common."""
    what = (s.verb, s.counts, s.dtype, s.op, s.root, s.segment)
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest(), "little",
                          signed=True)
