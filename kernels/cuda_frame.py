"""What one thread block encodes as pairs, and the frame that it puts around what is sent.

    prepare    v to where the host has it (residual, or dst as work area), piece by piece
    frame      the floor of the keys (`cuda_select`), how many are sent, and where they go
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda

from collectives.kernels.codecs import pairs, threshold, topk
from collectives.kernels.cuda_memory import block_function, load, scalar_function, store
from collectives.kernels.cuda_numbers import STORED, finite_of, size_bits, widener
from collectives.kernels.cuda_pairs import filler, looker
from collectives.kernels.cuda_select import boundary, counter, summer

_HEADER, _PAIR = threshold.HEADER_NBYTES, pairs.PAIR_NBYTES
_sent = pairs.cores(scalar_function).sent
_kept = topk.cores(scalar_function).kept
_level = threshold.cores(scalar_function).level


class View(NamedTuple):
    """n elements to be encoded, and where they come from; as the host's `view.View`.  All int64.

    odd : not 0 if some of a + what arrives is not finite, and so not in `source`
    """

    source: int
    n: int
    divisor: int
    odd: int
    a: int
    values: int
    indices: int
    count: int


class Frame(NamedTuple):
    """What is sent: elements whose key is above the floor, and the first `ties` of those at it.

    floor : uint32;  else int64, to addresses as in `cuda_pairs.opener`
    """

    floor: int
    ties: int
    values: int
    indices: int
    count: int


@cache
def value_reader(stored, a, acc, adds, feedback):
    """(view, i) -> v; where a + incoming is not finite, the residual holds its old number."""
    stored_type, widen, look, finite = (
        STORED[stored], widener(stored, acc), looker(a, acc, adds), finite_of(acc))

    @scalar_function
    def value_of(view, i):
        v = widen(load(view.source, i, stored_type))
        if feedback and view.odd != 0:
            given = look(view.a, i, view.values, view.indices, view.count)
            v = v if finite(given) else given
        return v

    return value_of


@cache
def sender(acc: str, divides: bool):
    """(v, divisor) -> what would be sent, float32."""
    number = STORED[acc]
    if divides:
        return scalar_function(lambda v, divisor: _sent(number(v / number(divisor))))
    return scalar_function(lambda v, divisor: _sent(v))


@cache
def preparation(adds: bool, feedback: bool, a: str, acc: str, tile_length: int):
    """`prepare(dst, a, values, indices, count, residual, n, tile) -> (source, odd)` of a View."""
    number, fill, finite = STORED[acc], filler(a, acc, adds), finite_of(acc)

    @block_function
    def in_residual(dst, a, values, indices, count, residual, n, tile):
        odd = 0
        for start in range(0, n, tile_length):
            length = min(tile_length, n - start)
            fill(tile, a, start, length, values, indices, count)
            for t in range(cuda.threadIdx.x, length, cuda.blockDim.x):
                if finite(tile[t]):
                    i = start + t
                    store(residual, i, number(tile[t] + load(residual, i, number)))
                else:
                    odd = 1
            cuda.syncthreads()
        return residual, np.int64(cuda.syncthreads_or(odd))

    @block_function
    def in_work(dst, a, values, indices, count, residual, n, tile):
        for start in range(0, n, tile_length):
            length = min(tile_length, n - start)
            fill(tile, a, start, length, values, indices, count)
            for t in range(cuda.threadIdx.x, length, cuda.blockDim.x):
                store(dst, start + t, tile[t])
            cuda.syncthreads()
        return dst, np.int64(0)

    @scalar_function
    def in_place(dst, a, values, indices, count, residual, n, tile):
        return a, np.int64(0)

    return in_residual if feedback else in_work if adds else in_place


def framer(name: str, read, rows: int):
    """`frame_of(view, wire, parameter, bits, scan, found, sums) -> Frame`; the last four: shared.

    read(view, i) : what would be sent;  rows : of `sums`, of SUMS each
    """
    return _largest(read) if name == "topk" else _above(read, rows)


def _largest(read):
    find = boundary(read)

    @block_function
    def frame_of(view, wire, parameter, bits, scan, found, sums):
        k = np.int64(_kept(view.n, parameter))
        floor, ties = find(view, k, bits, scan, found)
        return Frame(floor, np.int64(ties), wire, np.int64(wire + 4 * k), k)

    return frame_of


def _above(read, rows: int):
    """Of a threshold; writes the header."""
    squares, reaching = summer(read, rows), counter(read)

    @block_function
    def frame_of(view, wire, parameter, bits, scan, found, sums):
        total = squares(view, sums) if parameter < 0 else np.float64(0)
        floor = size_bits(_level(parameter, total, view.n))
        count = np.int64(reaching(view, floor, scan))
        dense = 2 * count >= view.n
        nbytes = np.int64(_HEADER + (4 * view.n if dense else _PAIR * count))
        if cuda.threadIdx.x == 0:
            store(wire, 0, np.uint32(nbytes & 0xFFFFFFFF))
            store(wire, 1, np.uint32(nbytes >> np.int64(32)))
        values = np.int64(wire + _HEADER)
        return Frame(floor, view.n, values, np.int64(0) if dense else np.int64(values + 4 * count),
                     view.n if dense else count)

    return frame_of
