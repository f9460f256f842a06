"""What runs one part of a call: the choice of algorithm, plan and channels."""

from hashlib import blake2b

from collectives import schedules, tuning
from collectives.calls import Call, Part, compresses
from collectives.placement import Placement
from collectives.plan import Signature, lower
from collectives.settings import settings

# Rounds over the blocks in flight before a waiting rank yields its core.
SPIN, SPIN_OVERSUBSCRIBED = 2000, 1


class Engines:
    """Makes engines for the calls of one communicator.

    shared : the mailboxes of this host (`mailbox.SharedMemory`)
    """

    def __init__(self, mpi, comm, placement: Placement):
        """Collective over the mpi4py communicator `comm`."""
        from collectives.mailbox import SharedMemory  # imports Numba
        self._mpi, self._comm = mpi, comm
        self._rank, self._size = comm.rank, comm.size
        self._one_host = placement.one_host
        self._spin = SPIN_OVERSUBSCRIBED if placement.oversubscribed else SPIN
        self.shared = SharedMemory(comm, placement.local_ranks)

    def start(self, call: Call, part: Part, lane):
        """An engine that runs `part`: started, to be advanced until it is done."""
        algorithm = self.algorithm(call, part)
        if algorithm == "native":
            return self._native(call, part, lane)
        from collectives.execution import Execution  # importing it needs MPI
        source, target = part.source.ctypes.data, part.target.ctypes.data
        # Mailboxes are the main thread's; other threads' messages are told apart by MPI's tags.
        shared = (self.shared.ranks, self.shared.limit) if lane.index == 0 else ((), 0)
        codec, residual = part.codec, part.residual
        signature = Signature(
            call.verb, algorithm, self._rank, self._size, call.root, part.counts, part.dtype,
            part.op, source == target, settings().segment or tuning.DEFAULT_SEGMENT, *shared,
            codec and codec.layout, residual is not None)
        execution = lane.executions.take(signature) or Execution(
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
        if forced in ("native", *schedules.algorithms(call.verb)) \
                and (not coded or compresses(call.verb, forced)):
            return forced
        return tuning.CODED if coded else tuning.choose(call.verb, part.nbytes, self._one_host)

    def _native(self, call: Call, part: Part, lane):
        from collectives.native import native_call
        if lane.index:
            raise ValueError("algorithm='native' may be used from the main thread only")
        return native_call(self._mpi, self._comm, call, part)


def _seed(*values: int) -> int:
    """64 bits that look random, the same for the same values on every machine."""
    digest = blake2b(repr(values).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
