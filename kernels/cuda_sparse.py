"""Device kernels of the codecs that send pairs: TopK and Threshold.

    PARTIAL, VALUE, DECODE    a thread block per piece of TILE elements (`cuda_pairs`)
    WIRE, FINAL               one thread block, so that nothing waits for another launch
                              (`cuda_select` finds what is sent, `cuda_collect` sends it)

The host's file `sparse` says where v is formed and what happens to values that are not finite.
"""

import numpy as np
from numba import cuda

from collectives.kernels.codec import Codec, Emit
from collectives.kernels.cuda_memory import load, scalar_function, store
from collectives.kernels.cuda_numbers import STORED, finite_of, narrower, widener
from collectives.kernels.cuda_pairs import filler, first_from, nothing, opener
from collectives.kernels.floats import accumulator_of

TILE, TILE_THREADS = 1024, 256
ENCODE_THREADS = 512  # of 1024, each would have too few registers


def make(codec: Codec, emit: Emit, adds: bool, feedback: bool, a: str, dst: str,
         threads: int | None = None, tile: int = TILE, words: int = 2048):
    """(kernel to compile, elements per thread block or 0, threads per block).

    threads : a power of two, or None for what suits;  tile : elements of a piece, a power of two
    words : of 32 bits, a power of two: a round of `cuda_collect` is 32 times as many elements
    """
    from collectives.kernels import cuda_collect
    acc = accumulator_of(a, dst)
    open_wire = opener(codec.name) if adds else nothing
    if emit is Emit.FINAL and adds and not feedback:
        raise ValueError(f"{codec.name}: FINAL with adds needs feedback: expected PARTIAL, then "
                         "FINAL")
    if emit in (Emit.WIRE, Emit.FINAL):
        threads = threads or ENCODE_THREADS
        kernel = cuda_collect.make(codec.name, emit, open_wire, adds, feedback, a, dst, threads,
                                   tile, words)
        return kernel, 0, threads
    if emit is Emit.DECODE:
        kernel = _decode(open_wire, dst, tile)
    else:
        kernel = _spread(open_wire, adds, emit, feedback, a, dst, acc, tile)
    return kernel, tile, threads or TILE_THREADS


def _spread(open_wire, adds, emit, feedback, a, dst, acc, tile_length):
    """dst from a + what arrives, one piece per thread block."""
    acc_type, fill = STORED[acc], filler(a, acc, adds)
    if emit is Emit.PARTIAL:
        finish = scalar_function(lambda dst, residual, i, x, divisor: store(dst, i, x))
    else:
        finish = _valued(feedback, dst, acc)

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        tile = cuda.shared.array(tile_length, acc_type)
        values, indices, count = open_wire(incoming, n, parameter)
        start = np.int64(cuda.blockIdx.x) * tile_length
        length = min(np.int64(tile_length), n - start)
        fill(tile, a, start, length, values, indices, count)
        for t in range(cuda.threadIdx.x, length, cuda.blockDim.x):
            finish(dst, residual, start + t, tile[t], divisor)

    return kernel


def _valued(feedback: bool, dst: str, acc: str):
    number, narrow, widen, finite = (
        STORED[acc], narrower(acc, dst), widener(dst, acc), finite_of(acc))

    @scalar_function
    def plain(dst, residual, i, x, divisor):
        store(dst, i, narrow(number(x / number(divisor))))

    @scalar_function
    def settled(dst, residual, i, x, divisor):
        v = number(x + load(residual, i, number))
        share = narrow(number(v / number(divisor)))
        rest = number(v - number(number(divisor) * widen(share)))
        store(dst, i, share)
        if finite(rest):
            store(residual, i, rest)

    return settled if feedback else plain


def _decode(open_wire, dst, tile_length):
    """Zeros, then what arrives is put into them, one piece per thread block."""
    stored, narrow = STORED[dst], narrower("float32", dst)

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        values, indices, count = open_wire(incoming, n, parameter)
        start = np.int64(cuda.blockIdx.x) * tile_length
        end = min(start + tile_length, n)
        for i in range(start + cuda.threadIdx.x, end, cuda.blockDim.x):
            dense = indices == 0 and i < count
            store(dst, i, narrow(load(values, i, np.float32)) if dense else stored(0))
        cuda.syncthreads()
        if indices != 0:
            low = first_from(indices, count, start)
            high = first_from(indices, count, end)
            for j in range(low + cuda.threadIdx.x, high, cuda.blockDim.x):
                i = np.int64(load(indices, j, np.uint32))
                if i >= start and i < end:  # else the indices do not ascend
                    store(dst, i, narrow(load(values, j, np.float32)))

    return kernel
