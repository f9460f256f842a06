"""What the compiled loop works on: a plan's tables, and the state between its slices.

One `Frame` per `Execution`; compiled functions get it whole.  Sizes: R rows, V variants, D blocks
in flight ("places").
"""

from typing import NamedTuple

import numpy as np
from numba import types

# Columns of `state`, one row per place.
BLOCK, PC, POSTED, SENT, SENDS_DONE, VARIANT = range(6)
# Entries of `report`: where it failed, and what is waited for.
FAIL_ROW, FAIL_CODE, FAIL_GOT, WAIT_ROW = range(4)
# Entries of `counters`: of all messages sent so far, their number and bytes.
MESSAGES, SENT_NBYTES = range(2)
# FAIL_CODE of failures that are not MPI's: a message is not as long as the row says, or a peer's
# memory could not be read.
WRONG_LENGTH, READ_FAILED = -2, -3
# Entries of `handles`.  CODED: messages are wires; VARIABLE: they start with their own length.
COMM, BYTE, TAG, DIVISOR, SLOT_NBYTES, CODED, VARIABLE, SEED = range(8)
# Values of `flags`: nothing under way for a row, its message under way, its message complete.
FREE, UNDER_WAY, COMPLETE = 0, 1, 2
# What doing a row comes to; MOVED is some way, and must wait now.
FAIL, WAIT, DONE, MOVED = -1, 0, 1, 2


class Frame(NamedTuple):
    """See the module docstring."""

    rows: np.ndarray  # int64 (R, 14), see plan.Plan
    extents: np.ndarray  # int64 (V, R, 6)
    first_block: np.ndarray  # int64 (V + 1,)
    kernels: np.ndarray  # int64, addresses of C functions
    bases: np.ndarray  # int64 (7,), address of each buffer, of block 0 or place 0
    stride: np.ndarray  # int64 (7,), bytes from block to block
    scratch: np.ndarray  # int64 (7,), bytes from place to place
    state: np.ndarray  # int64 (D, 6)
    flags: np.ndarray  # uint8 (D, R)
    progress: np.ndarray  # int64 (D, R); of receives: bytes done; of sends: see transfer.py
    report: np.ndarray  # int64 (4,)
    handles: np.ndarray  # int64 (8,)
    layout: np.ndarray  # int64, see mailbox.SharedMemory
    counters: np.ndarray  # int64 (2,), shared by all calls of a lane
    requests: int  # address of D x R request slots
    io: int  # address of mpi_abi.IO_NBYTES bytes of scratch
    spin: int  # rounds of waiting before the core is yielded
    parameter: float  # of the codec


_VECTOR, _MATRIX = types.int64[::1], types.int64[:, ::1]
FRAME = types.NamedTuple(
    (_MATRIX, types.int64[:, :, ::1], _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _MATRIX,
     types.uint8[:, ::1], _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, types.int64, types.int64,
     types.int64, types.float64), Frame)
