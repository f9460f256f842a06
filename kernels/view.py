"""The elements that a sparse codec encodes, as its passes see them: in blocks of LANES.

Where all is well they lie in one array.  The last block may be short, and with feedback the array,
which is the residual, does not hold what is not finite (see `sparse`): such a block is copied to
where it is whole and right.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from collectives.kernels import floats
from collectives.kernels.floats import STORED
from collectives.kernels.incoming import apart, incoming, inline
from collectives.kernels.lanes import LANES, least, where_finite
from collectives.kernels.scalars import load, store


class View(NamedTuple):
    """n elements, and where they come from.

    source : address of the elements
    divisor : of the accumulator's type
    odd : not 0 if something that the sender gave is not finite, and so not in `source`
    block : address of memory for one block
    a, values, indices, count : what the sender gave, is a + incoming (see `incoming`)
    """

    source: int
    n: int
    divisor: float
    odd: int
    block: int
    a: int
    values: int
    indices: int
    count: int


@cache
def given(a: str, accumulator: str):
    """`fetch(acc, a, start, length, n, values, indices, count, cursor) -> cursor`: a + incoming.

    cursor : as for `incoming.piece`
    """
    stored, widen, piece = STORED[a], floats.widener(a, accumulator), incoming(accumulator).piece
    size = np.dtype(stored).itemsize

    @apart
    def fetch(acc, a, start, length, n, values, indices, count, cursor):
        here = a + start * size
        for j in range(length):
            store(acc, j, widen(load(here, j, stored)))
        if count:
            cursor = piece(acc, start, length, n, values, indices, count, cursor)
        return cursor

    return fetch


@cache
def blocks(stored: str, feedback: bool, a: str):
    """`block_at(view, i, cursor) -> (address, cursor)`: the block at i, a multiple of LANES.

    It has zeros beyond the end; cursor as for `incoming.piece`.
    """
    copy = _copier(a, stored) if feedback else _tail_copier(stored)
    size = np.dtype(STORED[stored]).itemsize

    @inline
    def block_at(view, i, cursor):
        here = view.source + i * size
        if i + LANES > view.n or view.odd:
            cursor = copy(view, i, cursor)
            here = view.block
        return here, cursor

    return block_at


def _copier(a: str, accumulator: str):
    """`copy(view, i, cursor) -> cursor`: the block at i to view.block, then zeros."""
    real, fetch = STORED[accumulator], given(a, accumulator)
    size = np.dtype(real).itemsize

    @apart
    def copy(view, i, cursor):
        length, here = least(view.n - i, LANES), view.source + i * size
        cursor = fetch(view.block, view.a, i, length, view.n, view.values, view.indices, view.count,
                       cursor)
        for j in range(LANES):
            if j < length:
                x = load(view.block, j, real)
                store(view.block, j, where_finite(x, load(here, j, real), x))
            else:
                store(view.block, j, real(0))
        return cursor

    return copy


def _tail_copier(stored: str):
    real, size = STORED[stored], np.dtype(STORED[stored]).itemsize

    @apart
    def copy(view, i, cursor):
        here = view.source + i * size
        for j in range(LANES):
            store(view.block, j, load(here, j, real) if i + j < view.n else real(0))
        return cursor

    return copy
