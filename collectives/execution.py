"""One call of a plan: its addresses, scratch and state between the slices of the compiled loop.

An `Execution` is made once per plan and used again for later calls with the same signature; a
second call that starts before the first has ended gets another one.
"""

import numpy as np

from collectives import executor, frame, mpi_abi
from collectives.errors import MPIError
from collectives.frame import Frame
from collectives.kernels.fused import fused_kernel
from collectives.kernels.reduce import reduce_kernel
from collectives.mailbox import SharedMemory
from collectives.memory import Arena
from collectives.plan import NBYTES, PEER, VERB, Buffer, CodecKernel, Kernel, Plan, Verb

HINT = "; did the ranks pass tensors of different sizes? COLLECTIVES_CHECK=1 says which"


class Execution:
    """Runs `plan` on one communicator, one call at a time."""

    def __init__(self, plan: Plan, comm, size: int, shared: SharedMemory, spin: int,
                 counters: np.ndarray):
        depth, length = plan.depth, max(1, len(plan.rows))
        self.plan, self.signature = plan, plan.signature
        self._bases = np.zeros(len(Buffer), np.int64)
        self._requests = np.zeros(depth * length, np.int64)
        self._shared = shared  # keeps the memory mapped
        self._io = np.zeros(mpi_abi.IO_NBYTES, np.uint8)
        self._report = np.zeros(4, np.int64)
        codec = self.signature.codec
        divides = codec is None or self.signature.op == "mean"
        self._handles = np.array(
            [mpi_abi.handle(comm), mpi_abi.handle(mpi_abi.MPI.BYTE), 0, size if divides else 1,
             plan.slot_nbytes, codec is not None, codec is not None and codec.variable, 0],
            np.int64)
        self._advance, self._begin = executor.compiled(), True
        self._scratch_nbytes = plan.scratch_nbytes
        self._frame = Frame(
            plan.rows, plan.extents, plan.first_block, _kernels(plan), self._bases, plan.stride,
            plan.scratch, state=np.zeros((depth, 6), np.int64),
            flags=np.zeros((depth, length), np.uint8),
            progress=np.zeros((depth, length), np.int64), report=self._report,
            handles=self._handles, layout=shared.layout, counters=counters,
            requests=self._requests.ctypes.data, io=self._io.ctypes.data, spin=spin,
            parameter=codec.parameter if codec else 0.0)
        self._scratch: np.ndarray | None = None
        self._scratch_at = 0

    def start(self, source: int, target: int, tag: int, arena: Arena, residual: int = 0,
              seed: int = 0) -> None:
        """Begin a call on the buffers at these addresses; `seed` is for stochastic rounding."""
        self._bases[Buffer.IN], self._bases[Buffer.OUT] = source, target
        self._bases[Buffer.RESIDUAL] = residual
        self._handles[frame.TAG], self._handles[frame.SEED] = tag, seed
        if self._scratch_nbytes:
            self._scratch, address = arena.take(self._scratch_nbytes)
            if address != self._scratch_at:
                self._place_scratch(address)
        self._arena = arena
        self._begin = True

    def run(self, source: np.ndarray, target: np.ndarray, lane, budget: float) -> bool:
        """A whole call; False if it has been idle for `budget` seconds and is to be advanced."""
        self.start(source.ctypes.data, target.ctypes.data, lane.tag, lane.arena)
        done = self.advance(budget)
        if done:
            self.finish()
        return done

    def advance(self, budget: float) -> bool:
        """Run until done (True) or idle for `budget` seconds (False).

        Raises
        ------
        MPIError
            If an MPI call failed; the call cannot be continued.
        """
        outcome = self._advance(self._frame, self._begin, budget)
        self._begin = False
        if outcome == executor.FAILED:
            raise MPIError(self._failure())
        return outcome == executor.FINISHED

    def finish(self) -> None:
        """Give the scratch back."""
        if self._scratch is not None:
            self._arena.give(self._scratch)
            self._scratch = None

    def _place_scratch(self, address: int) -> None:
        self._scratch_at = address
        for buffer in (Buffer.PART, Buffer.FINAL, Buffer.LAND, Buffer.WIRE):
            self._bases[buffer] = address
            address += int(self.plan.scratch[buffer]) * self.plan.depth

    def _failure(self) -> str:
        row, code, got = (int(v) for v in self._report[:3])
        plan, s = self.plan, self.plan.signature
        where = (f"{s.verb} ({s.algorithm}) on rank {s.rank}, step {row}: "
                 f"{Verb(plan.rows[row, VERB]).name} with rank {plan.rows[row, PEER]}")
        if code == frame.WRONG_LENGTH:
            want = sorted({int(n) for n in plan.extents[:, row, NBYTES]})
            return f"{where}: got {got} bytes, expected {want}{HINT}"
        if code == frame.READ_FAILED:
            return f"{where}: cannot read the memory of that rank; has it ended?"
        hint = HINT if mpi_abi.MPI.Get_error_class(code) == mpi_abi.MPI.ERR_TRUNCATE else ""
        return f"{where}: {mpi_abi.MPI.Get_error_string(code)} (code {code}){hint}"

    def waiting_for(self) -> str:
        """What the first unfinished row waits for, for stall reports."""
        row = int(self._report[frame.WAIT_ROW])
        peer, verb = self.plan.rows[row, PEER], Verb(self.plan.rows[row, VERB])
        return f"step {row} of {len(self.plan.rows)}, {verb.name} with rank {peer}"


def _kernels(plan: Plan) -> np.ndarray:
    return np.array([_address(plan, kernel) for kernel in plan.kernels], np.int64)


def _address(plan: Plan, k: Kernel | CodecKernel) -> int:
    s = plan.signature
    if isinstance(k, CodecKernel):
        return fused_kernel(s.codec, k.emit, k.adds, k.feedback, k.a, k.dst)
    partial = "sum" if s.op == "mean" else s.op
    return reduce_kernel(s.op if k.final else partial, k.a, k.b, k.dst, plan.accumulator)
