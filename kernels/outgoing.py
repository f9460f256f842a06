"""What leaves in a sparse codec's wire.

Elements are judged by their keys (`lanes`): those above a floor are sent, and the first `ties` of
those at it.  A pass collects them; where top-k has a list of candidates, only those are looked at.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from collectives.kernels.codecs import pairs, threshold, topk
from collectives.kernels.floats import STORED
from collectives.kernels.incoming import apart, inline, leftover
from collectives.kernels.lanes import (
    INF_KEY,
    LANES,
    first_lanes,
    lanes,
    least,
    lowest,
    where_finite,
)
from collectives.kernels.scalars import float_bits, load, store
from collectives.kernels.select import meter, selector
from collectives.kernels.view import blocks


class Pairs(NamedTuple):
    """A wire that has been written; fields as in `incoming`."""

    values: int
    indices: int
    count: int


def sender(name: str, stored: str, accumulator: str, divides: bool, feedback: bool, a: str,
           dst: str):
    """`send(view, residual, wire, parameter, scratch) -> Pairs`.

    Leaves v - what was sent in the residual, if there is feedback; what was sent is `divisor` times
    the value rounded to type `dst`.
    """
    vector, block_at = lanes(stored, divides), blocks(stored, feedback, a)
    settle = _settling(accumulator, dst) if feedback else _nothing_to_settle
    collect = _collector(block_at, vector, stored, settle)
    if name == "topk":
        size = np.dtype(STORED[stored]).itemsize
        return _largest(selector(block_at, vector, size), collect, _picker(vector, stored, settle))
    return _above(meter(block_at, vector), collect)


def _largest(search: SimpleNamespace, collect, pick):
    kept = topk.cores(inline).kept
    candidates, boundary = search.candidates, search.boundary

    @apart
    def send(view, residual, wire, parameter, scratch):
        k = kept(view.n, parameter)
        total, low = candidates(view, k, wire, scratch)
        floor, ties = boundary(view, k, wire, total, low, scratch)
        if total:
            pick(view, residual, floor, ties, wire, total, k)
        else:
            collect(view, residual, floor, ties, wire, wire + 4 * k)
        return Pairs(wire, wire + 4 * k, k)

    return send


def _above(measure: SimpleNamespace, collect):
    level, header = threshold.cores(inline).level, threshold.HEADER_NBYTES
    reached, squares, pair_nbytes = measure.reached, measure.squares, pairs.PAIR_NBYTES

    @apart
    def send(view, residual, wire, parameter, scratch):
        n, total = view.n, 0.0
        if parameter < 0:
            total = squares(view, scratch)
        floor = np.int64(float_bits(level(parameter, total, n)))
        count, values = reached(view, floor), wire + header
        indices, nbytes = values + 4 * count, header + pair_nbytes * count
        if 2 * count >= n:
            indices, count, nbytes = 0, n, header + 4 * n
            for i in range(n):
                store(values, i, np.float32(0))
        store(wire, 0, np.int64(nbytes))
        collect(view, residual, floor, n, values, indices)
        return Pairs(values, indices, count)

    return send


def _collector(block_at, vector, stored: str, settle):
    """`collect(view, residual, floor, ties, values, indices)`: a pass; indices 0 for a dense wire.

    What is not finite is settled even if it is not sent.
    """
    sent, key, reaching = vector.sent, vector.key, vector.reaching
    real, size = STORED[stored], np.dtype(STORED[stored]).itemsize

    @apart
    def collect(view, residual, floor, ties, values, indices):
        cursor, at = 0, 0
        for i in range(0, view.n, LANES):
            here, cursor = block_at(view, i, cursor)
            hits = reaching(here, view.divisor, least(floor, INF_KEY)) & first_lanes(view.n - i)
            while hits:
                j = lowest(hits)
                hits &= hits - 1
                address = here + j * size
                found, value = key(address, view.divisor), sent(address, view.divisor)
                tie = found == floor and ties > 0
                chosen = found > floor or tie
                if chosen:
                    ties -= tie
                    slot = at if indices else i + j
                    store(values, slot, value)
                    if indices:
                        store(indices, slot, np.uint32(i + j))
                    at += 1
                if chosen or found >= INF_KEY:
                    settle(residual, i + j, load(address, 0, real), value, view.divisor)

    return collect


def _picker(vector, stored: str, settle):
    """`pick(view, residual, floor, ties, wire, total, k)`: from a list of `total` at the wire."""
    sent, key = vector.sent, vector.key
    real, size = STORED[stored], np.dtype(STORED[stored]).itemsize

    @apart
    def pick(view, residual, floor, ties, wire, total, k):
        at = 0
        for t in range(total):
            i = np.int64(load(wire, t, np.uint32))
            here = view.source + i * size
            found = key(here, view.divisor)
            store(wire, at, np.uint32(i))
            tie = (found == floor) & (ties > 0)
            chosen = (found > floor) | tie
            at += chosen  # no branch, as nobody can predict it
            ties -= tie
            if (found >= INF_KEY) & (not chosen):
                settle(residual, i, load(here, 0, real), sent(here, view.divisor), view.divisor)
        for t in range(k):
            store(wire, k + t, load(wire, t, np.uint32))
        for t in range(k):
            i = np.int64(load(wire, k + t, np.uint32))
            here = view.source + i * size
            value = sent(here, view.divisor)
            store(wire, t, value)
            settle(residual, i, load(here, 0, real), value, view.divisor)

    return pick


def _settling(accumulator: str, dst: str):
    """`settle(residual, i, v, value, divisor)`: the new residual of an element that is sent.

    Where v is not finite the residual stays what it was, or becomes 0 if that is not finite either.
    """
    real, rest = STORED[accumulator], leftover(accumulator, dst)

    @inline
    def settle(residual, i, v, value, divisor):
        old = load(residual, i, real)
        kept = where_finite(old, old, real(0))
        store(residual, i, where_finite(v, rest(v, real(value), divisor), kept))

    return settle


@inline
def _nothing_to_settle(residual, i, v, value, divisor):
    pass
