"""The step table: one row per action of one rank.  Everything else reads it."""

from enum import IntEnum
from typing import NamedTuple


class Op(IntEnum):
    """What a step does.  Every consumer must handle every member (tests/test_ops_exhaustive.py)."""

    SEND = 0  # post chunks [chunk, chunk + count) to peer; never blocks
    RECV = 1  # overwrite them with what peer sent: always the final value
    RECV_REDUCE = 2  # combine them with what peer sent: its raw value or a partial result


class Step(NamedTuple):
    """One row.  `chunk` and `count` are in chunks, never bytes: a schedule has no size."""

    op: Op
    peer: int
    chunk: int
    count: int = 1
