"""What arrives in a sparse codec's wire, on the device: opened, and added piece by piece.

A piece is `tile` neighbouring elements, in shared memory while a thread block adds to them:

    indices of the wire, ascending    3 9 | 17 18 30 | 33 ...
    piece of elements 16 .. 31              found by two binary searches; a thread per pair

A wire may be damaged: lengths are clipped and indices checked, so nothing is written elsewhere.
"""

from functools import cache

import numpy as np
from numba import cuda

from collectives.kernels.codecs import threshold, topk
from collectives.kernels.cuda_memory import block_function, load, scalar_function
from collectives.kernels.cuda_numbers import STORED, widener

_HEADER = threshold.HEADER_NBYTES
_kept = topk.cores(scalar_function).kept


def opener(name: str):
    """`opened(wire, n, parameter) -> (values, indices, count)`; indices is 0 where all are sent."""
    return _open_pairs if name == "topk" else _open_by_header


@scalar_function
def nothing(wire, n, parameter):
    """An opener where nothing arrives."""
    return wire, np.int64(0), np.int64(0)


@scalar_function
def _open_pairs(wire, n, parameter):
    count = np.int64(_kept(n, parameter))
    return wire, np.int64(wire + 4 * count), count


@scalar_function
def _open_by_header(wire, n, parameter):
    high, low = load(wire, 1, np.uint32), load(wire, 0, np.uint32)
    nbytes = (np.int64(high) << np.int64(32)) + np.int64(low) - _HEADER
    nbytes = min(max(nbytes, np.int64(0)), 4 * n)
    dense = nbytes == 4 * n
    count = np.int64(n) if dense else np.int64(nbytes >> np.int64(3))
    values = np.int64(wire + _HEADER)
    return values, np.int64(0) if dense else np.int64(values + 4 * count), count


@scalar_function
def first_from(indices, count, element):
    """How many of the ascending indices are below `element`."""
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) >> np.int64(1)
        if np.int64(load(indices, middle, np.uint32)) < element:
            low = middle + np.int64(1)
        else:
            high = middle
    return low


@cache
def adder(acc: str):
    """`add(tile, start, length, values, indices, count)`: to the elements from `start` on."""
    number = STORED[acc]

    @block_function
    def add(tile, start, length, values, indices, count):
        if indices == 0:
            for t in range(cuda.threadIdx.x, min(length, count - start), cuda.blockDim.x):
                tile[t] = number(tile[t] + number(load(values, start + t, np.float32)))
        else:
            low = first_from(indices, count, start)
            high = first_from(indices, count, start + length)
            for j in range(low + cuda.threadIdx.x, high, cuda.blockDim.x):
                t = np.int64(load(indices, j, np.uint32)) - start
                if t >= 0 and t < length:  # else the indices do not ascend
                    tile[t] = number(tile[t] + number(load(values, j, np.float32)))
        cuda.syncthreads()

    return add


@cache
def filler(a: str, acc: str, adds: bool):
    """`fill(tile, a, start, length, values, indices, count)`: tile = a + what arrives."""
    a_type, widen, add = STORED[a], widener(a, acc), adder(acc)

    @block_function
    def fill(tile, a, start, length, values, indices, count):
        for t in range(cuda.threadIdx.x, length, cuda.blockDim.x):
            tile[t] = widen(load(a, start + t, a_type))
        cuda.syncthreads()
        if adds:
            add(tile, start, length, values, indices, count)

    return fill


@cache
def looker(a: str, acc: str, adds: bool):
    """`look(a, i, values, indices, count)`: one element of a + what arrives."""
    number, a_type, widen = STORED[acc], STORED[a], widener(a, acc)

    @scalar_function
    def look(a, i, values, indices, count):
        v = widen(load(a, i, a_type))
        if adds:
            j = np.int64(i) if indices == 0 else first_from(indices, count, i)
            if j < count and (indices == 0 or np.int64(load(indices, j, np.uint32)) == i):
                v = number(v + number(load(values, j, np.float32)))
        return v

    return look
