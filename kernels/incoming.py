"""What arrives in a sparse codec's wire: opened, decoded, added.

A wire is read as `values` and `indices` (addresses) of `count` pairs; `indices` is 0 where it is
dense, and then value j is element j.  A wire may be damaged: indices of n or more are skipped,
lengths are clipped, so nothing is written outside n elements.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
from numba import njit

from collectives.kernels import floats
from collectives.kernels.codecs import threshold, topk
from collectives.kernels.floats import STORED
from collectives.kernels.lanes import least, where_finite
from collectives.kernels.scalars import load, store

inline = njit(inline="always")

apart = njit  # for long functions: compiled once each, inlined by LLVM if it wants


@cache
def leftover(accumulator: str, dst: str):
    """`rest(v, share, divisor)`: v - divisor * (share, rounded to `dst`); finite where v is."""
    narrow, widen = floats.narrower(accumulator, dst), floats.widener(dst, accumulator)
    real = STORED[accumulator]

    @inline
    def rest(v, share, divisor):
        product = divisor * widen(narrow(share))
        return v - where_finite(product, product, where_finite(v, v, real(0)))

    return rest


@cache
def opener(name: str):
    """`opened(wire, n, parameter) -> (values, indices, count)`."""
    kept, header = topk.cores(inline).kept, threshold.HEADER_NBYTES

    @inline
    def pairs_at(wire, n, parameter):
        count = kept(n, parameter)
        return wire, wire + 4 * count, count

    @inline
    def by_header(wire, n, parameter):
        nbytes = load(wire, 0, np.int64) - header if n else 0
        nbytes = least(nbytes, 4 * n) if nbytes > 0 else 0
        count = n if nbytes == 4 * n else nbytes >> 3
        return wire + header, 0 if count == n else wire + header + 4 * count, count

    return pairs_at if name == "topk" else by_header


@cache
def incoming(accumulator: str) -> SimpleNamespace:
    """Functions that add what arrives to accumulators.

    scatter(acc, n, values, indices, count) : to n of them
    piece(acc, start, length, n, values, indices, count, cursor) -> cursor : to `length` of them,
        those from element `start` on.  Give 0, then what was returned, for ascending pieces
    """
    real = STORED[accumulator]

    @apart
    def scatter(acc, n, values, indices, count):
        if indices == 0:
            for j in range(least(count, n)):
                store(acc, j, load(acc, j, real) + real(load(values, j, np.float32)))
        else:
            for j in range(count):
                i = np.int64(load(indices, j, np.uint32))
                if i < n:
                    store(acc, i, load(acc, i, real) + real(load(values, j, np.float32)))

    @apart
    def piece(acc, start, length, n, values, indices, count, cursor):
        if indices == 0:
            here = values + 4 * start
            for j in range(least(count - start, length)):
                store(acc, j, load(acc, j, real) + real(load(here, j, np.float32)))
        else:
            ahead = False
            while cursor < count and not ahead:
                i = np.int64(load(indices, cursor, np.uint32))
                j = i - start
                if 0 <= j < length:
                    store(acc, j, load(acc, j, real) + real(load(values, cursor, np.float32)))
                ahead = length <= j and i < n
                cursor += 0 if ahead else 1
        return cursor

    return SimpleNamespace(scatter=scatter, piece=piece)


@cache
def decoder(dst: str):
    """`decode(dst, n, values, indices, count)`: n elements, rounded to their type."""
    stored, rounded = STORED[dst], floats.narrower("float32", dst)

    @apart
    def decode(dst, n, values, indices, count):
        if indices == 0:
            for j in range(least(count, n)):
                store(dst, j, rounded(load(values, j, np.float32)))
        else:
            for j in range(n):
                store(dst, j, stored(0))
            for j in range(count):
                i = np.int64(load(indices, j, np.uint32))
                if i < n:
                    store(dst, i, rounded(load(values, j, np.float32)))

    return decode
