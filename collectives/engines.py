"""What runs one part of a call: the choice of algorithm, plan and channels."""

from hashlib import blake2b

from collectives import tuning
from collectives.calls import SHARED, Call, Part, algorithms, compresses
from collectives.placement import Placement
from collectives.plan import Signature, lower
from collectives.settings import settings


class Engines:
    """Makes engines for the calls of one communicator.

    shared : the mailboxes of this host (`mailbox.SharedMemory`)
    host : the memory of `shared` calls (`host_execution.HostMemory`); None where ranks are on
        several hosts, or there is but one rank, or memory cannot be shared
    """

    def __init__(self, mpi, comm, placement: Placement):
        """Collective over the mpi4py communicator `comm`."""
        # They import Numba.
        from collectives.host_execution import HostMemory
        from collectives.mailbox import SharedMemory
        from collectives.waiting import SPIN, SPIN_OVERSUBSCRIBED
        self._mpi, self._comm = mpi, comm
        self._rank, self._size = comm.rank, comm.size
        self.one_host = placement.one_host
        self._spin = SPIN_OVERSUBSCRIBED if placement.oversubscribed else SPIN
        self.shared = SharedMemory(comm, placement.local_ranks)
        self.host = HostMemory.shared(comm) if self.one_host else None

    def start(self, call: Call, part: Part, lane):
        """An engine that runs `part`: started, to be advanced until it is done."""
        algorithm = self.algorithm(call, part)
        if algorithm == "native":
            return self._native(call, part, lane)
        # Shared memory is the main thread's; other threads' messages are told apart by MPI's tags.
        main = lane.index == 0
        if algorithm == SHARED:
            if main and self.host is not None:
                return self._on_host(call, part, lane)
            algorithm = tuning.choose(call.verb, part.nbytes, self.one_host)
        from collectives.execution import Execution  # importing it needs MPI
        source, target = part.source.ctypes.data, part.target.ctypes.data
        shared = (self.shared.ranks, self.shared.limit) if main else ((), 0)
        codec, residual = part.codec, part.residual
        signature = Signature(
            call.verb, algorithm, self._rank, self._size, call.root, part.counts, part.dtype,
            part.op, source == target, _segment(), *shared, codec and codec.layout,
            residual is not None)
        execution = lane.executions.pop(signature, None) or Execution(
            lower(signature), self._comm, self._size, self.shared, self._spin, lane.counters)
        if codec is None:
            execution.start(source, target, lane.tag, lane.arena)
        else:
            execution.start(source, target, lane.tag, lane.arena,
                            0 if residual is None else residual.ctypes.data,
                            _seed(codec.seed, call.number, self._rank))
        return execution

    def algorithm(self, call: Call, part: Part) -> str:
        """The algorithm that `part` runs with."""
        if call.algorithm != "auto":
            return call.algorithm
        forced = settings().algorithm
        coded = part.codec is not None
        if forced in algorithms(call.verb, self.one_host)[1:] \
                and (not coded or compresses(call.verb, forced)):
            return forced
        if coded:
            return tuning.CODED
        if self.host is not None and tuning.is_for_shared_memory(call.verb, part.nbytes):
            return SHARED
        return tuning.choose(call.verb, part.nbytes, self.one_host)

    def _on_host(self, call: Call, part: Part, lane):
        """An engine among all ranks of this host, through memory that all share."""
        from collectives.host_execution import HostExecution
        source, target = part.source.ctypes.data, part.target.ctypes.data
        signature = Signature(call.verb, SHARED, self._rank, self._size, call.root, part.counts,
                              part.dtype, part.op, source == target, _segment())
        execution = lane.executions.pop(signature, None) or HostExecution(
            signature, self.host, self._spin, lane.counters)
        execution.start(source, target)
        return execution

    def _native(self, call: Call, part: Part, lane):
        from collectives.native import native_call
        if lane.index:
            raise ValueError("algorithm='native' may be used from the main thread only")
        return native_call(self._mpi, self._comm, call, part)


def _segment() -> int:
    """Bytes per message, about."""
    return settings().segment or tuning.DEFAULT_SEGMENT


def _seed(*values: int) -> int:
    """64 bits that look random, the same for the same values on every machine."""
    digest = blake2b(repr(values).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
