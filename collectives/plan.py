"""A plan: one rank's schedule lowered for (count, dtype, op), ready for an executor.

A schedule is run block by block.  A block holds one segment of every chunk, so that a message is
one segment long; `depth` blocks are in flight at once, each an independent run of the same rows
with scratch and a message tag of its own.  So segment j leaves as soon as it is reduced, while
segment j+1 still arrives, and scratch does not grow with the tensor.

    allreduce, broadcast, reduce     a block is a contiguous range, cut evenly into chunks
    reduce_scatter, allgather        chunk r belongs to rank r; a block holds the same range of
                                     elements of every chunk

With a codec all messages are wires, chunks end where the codec's wires may be cut, and rows name
the fused kernels that make them (`coding.py`).

The rows (`lowering.py`) are the same for every block; byte counts and offsets come from the
block's *variant* (`blocks.py`): most blocks are alike, the last ones are shorter.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from collectives.kernels.codec import Codec, Emit


class Verb(IntEnum):
    """What a row of a plan does.  Every executor handles every member."""

    SEND = 0  # post `a` to peer
    RECV = 1  # receive into `dst`
    REDUCE = 2  # receive into a landing slot; dst = a op slot, or a codec's kernel on both
    COPY = 3  # dst = a
    ENCODE = 4  # run a codec's kernel on `a`
    DECODE = 5  # dst = decode(a)


class Buffer(IntEnum):
    """Where a row's operand lives; the executor is given one base address for each."""

    IN = 0  # the caller's tensor
    OUT = 1  # the result; the same memory as IN in place
    PART = 2  # partial values, in the accumulator's type
    FINAL = 3  # final values that are only passed on, in the tensor's type
    LAND = 4  # where messages to be reduced land
    WIRE = 5  # encoded chunks: made here to be sent, or received to be passed on and decoded
    RESIDUAL = 6  # the caller's: what encodings dropped


class Channel(IntEnum):
    """How messages travel to a peer."""

    MPI = 0
    SHARED = 1  # shared memory; see mailbox.py


# Columns of Plan.rows.
VERB, PEER, CHANNEL, BOX, A, DST, KERNEL, SWAP, SLOT, AFTER, SENDS, WIRE_SIZE, A_SIZE, DST_SIZE = \
    range(14)
# Columns of Plan.extents.
NBYTES, COUNT, A_OFFSET, DST_OFFSET, WIRE_OFFSET, RESIDUAL_OFFSET = range(6)


@dataclass(frozen=True)
class Signature:
    """What a plan is made for: everything that a call's plan depends on.

    counts : elements of each rank's chunk (reduce_scatter, allgather) or of the tensor (others)
    segment : bytes per message, about
    shared : the ranks that share memory with this one, itself included; empty for none
    shared_limit : bytes of the longest message that may go through it
    codec : `layout` of the codec that all messages are encoded with, or None
    feedback : whether there is a residual
    """

    verb: str
    algorithm: str
    rank: int
    size: int
    root: int
    counts: tuple[int, ...]
    dtype: str
    op: str
    in_place: bool
    segment: int
    shared: tuple[int, ...] = ()
    shared_limit: int = 0
    codec: Codec | None = None
    feedback: bool = False


@dataclass(frozen=True)
class Kernel:
    """dst = a op b, with the stored types of all three; `final` divides a mean."""

    a: str
    b: str
    dst: str
    final: bool


@dataclass(frozen=True)
class CodecKernel:
    """A kernel of the signature's codec, see `kernels.codec`; a and dst are stored types.

    adds : whether it decodes the message that landed, and adds it
    """

    emit: Emit
    adds: bool
    feedback: bool
    a: str
    dst: str


@dataclass(frozen=True)
class Plan:
    """One rank's program.

    rows : int64 (R, 14), columns VERB .. DST_SIZE.  `sends` of a row that writes: how many of the
        block's sends, in row order, must be complete first.  `after` of a row that receives by
        MPI: the row that must be done before the receive may be posted.  `box`: the pair of ranks
        whose mailbox carries it.  Sizes are bytes per element.
    extents : int64 (V, R, 6), columns NBYTES .. RESIDUAL_OFFSET, bytes; COUNT in elements
    first_block : int64 (V + 1,), variant v serves blocks first_block[v] to first_block[v + 1]
    stride : int64 (7,), bytes by which each buffer's base moves from block to block
    scratch : int64 (7,), bytes of each buffer per block in flight; 0 for the caller's buffers
    kernels : what the KERNEL column means
    depth : blocks in flight
    """

    signature: Signature
    rows: np.ndarray
    extents: np.ndarray
    first_block: np.ndarray
    stride: np.ndarray
    scratch: np.ndarray
    slot_nbytes: int
    kernels: tuple[Kernel | CodecKernel, ...]
    accumulator: str
    depth: int

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of scratch that a call needs."""
        return int(self.scratch.sum()) * self.depth

    @property
    def sent_nbytes(self) -> int:
        """Bytes that one call sends; at most, with a codec of variable length."""
        sends = self.rows[:, VERB] == Verb.SEND
        per_block = self.extents[:, sends, NBYTES].sum(axis=1)
        return int((per_block * np.diff(self.first_block)).sum())


@lru_cache(maxsize=1024)
def lower(signature: Signature) -> Plan:
    """The plan of one rank; the plans of all ranks for one call fit together."""
    from collectives.blocks import assemble
    return assemble(signature)
