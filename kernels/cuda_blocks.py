"""Device kernels that encode into scaled blocks (int8, int4, ternary, sign); see `cuda_dense`.

    threads    0 1 2 3 ... T-1        each: v of its elements, and the largest |v| among them
                \\ | | | ... /         maximum, and for sign the sum, in shared memory
    scale      max|v| / L or mean|v|  the same number in all threads
    codes      0 1 2 3 ... row-1      each: the codes of a byte, put together, one store

v is computed once and kept in shared memory; in blocks that do not fit there it is computed again,
by the same instructions, and its inputs come from the cache.

The mean is of sums in LANES lanes, in the order that `codecs.sign` fixes.  The number of threads
divides LANES, so each lane sums what its own thread kept.
"""

from functools import cache

import numpy as np
from numba import cuda

from collectives.kernels.codec import Codec, Emit
from collectives.kernels.cuda_dense import Cores, Parts
from collectives.kernels.cuda_memory import (
    bits_float,
    block_function,
    scalar_function,
    store,
    store_packed,
)
from collectives.kernels.cuda_numbers import (
    STORED,
    is_number,
    narrower,
    remainder,
    size_bits,
    to_single,
    widener,
)
from collectives.kernels.cuda_threads import block_maximum, fold
from collectives.kernels.dense_levels import draws
from collectives.kernels.floats import accumulator_of
from collectives.kernels.scalars import LANES

MOST_KEPT_NBYTES = 16384  # of v in shared memory: several thread blocks share a processor's
_NAN = np.float32(np.nan)


def make(codec: Codec, parts: Parts, emit: Emit, a: str, dst: str):
    """The kernel to compile, of WIRE or FINAL."""
    acc = accumulator_of(a, dst)
    block, header, _, _, fields, nbytes, threads = parts.shape
    a_step, dst_step, acc_step = (np.dtype(t).itemsize * block
                                  for t in (STORED[a], STORED[dst], parts.acc))
    cores, keeps = parts.cores, _keeps(parts)
    kept_count, acc_type = block if keeps else 1, parts.acc
    bounds, scale_of, totals = parts.bounds, parts.scale, codec.statistic == "total"
    lanes = LANES if totals else 1
    to_send = _to_send(acc, emit is Emit.FINAL)
    largest_of = _largest(parts, keeps, to_send)
    scale_from = _mean(parts, keeps, to_send, cores) if totals else _peak(cores)
    write = _writer(codec, parts, keeps, to_send, cores, _settle(parts, emit, acc, dst))

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        kept = cuda.shared.array(kept_count, acc_type)
        sizes = cuda.shared.array(threads, np.uint32)
        sums = cuda.shared.array(lanes, np.float64)
        number = np.int64(cuda.blockIdx.x)
        count = bounds(number, n)
        row = (count + fields - 1) // fields
        a += number * a_step
        residual += number * acc_step
        incoming += number * nbytes
        wire += number * nbytes
        theirs = scale_of(incoming)
        largest = largest_of(kept, sizes, a, residual, incoming, theirs, count, row, divisor)
        scale = scale_from(kept, sums, largest, a, residual, incoming, theirs, count, row, divisor)
        if not is_number(largest):
            scale = _NAN
        if cuda.threadIdx.x == 0:
            store_packed(wire, scale)
        write(kept, dst + number * dst_step, a, residual, incoming, theirs, wire + header, scale,
              count, row, divisor, seed, number)

    return kernel


def _keeps(parts: Parts) -> bool:
    return parts.shape.block * np.dtype(parts.acc).itemsize <= MOST_KEPT_NBYTES


@cache
def _to_send(acc: str, final: bool):
    """(v, divisor) -> float32: what is encoded."""
    single, acc_type = to_single(acc), STORED[acc]
    if final:
        return scalar_function(lambda v, divisor: single(acc_type(v / acc_type(divisor))))
    return scalar_function(lambda v, divisor: single(v))


@cache
def _largest(parts: Parts, keeps: bool, to_send):
    """Read v, keep it if it fits; the largest magnitude's bits."""
    fields, codes, value = parts.shape.fields, parts.codes, parts.value

    @block_function
    def largest_of(kept, sizes, a, residual, incoming, theirs, count, row, divisor):
        size = np.uint32(0)
        for j in range(cuda.threadIdx.x, row, cuda.blockDim.x):
            byte = codes(incoming, j)
            for field in range(fields):
                i = field * row + j
                if i < count:
                    v = value(a, residual, i, byte, field, theirs)
                    if keeps:
                        kept[i] = v
                    size = max(size, size_bits(to_send(v, divisor)))
        return block_maximum(sizes, size)

    return largest_of


def _peak(cores: Cores):
    scale = cores.scale

    @scalar_function
    def scale_from(kept, sums, largest, a, residual, incoming, theirs, count, row, divisor):
        return scale(bits_float(largest))

    return scale_from


@cache
def _mean(parts: Parts, keeps: bool, to_send, cores: Cores):
    fields, codes, value, scale = parts.shape.fields, parts.codes, parts.value, cores.scale

    @block_function
    def scale_from(kept, sums, largest, a, residual, incoming, theirs, count, row, divisor):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            total = np.float64(0)
            for field in range(fields):
                for j in range(lane, row, LANES):
                    i = field * row + j
                    if i < count:
                        v = kept[i] if keeps else value(
                            a, residual, i, codes(incoming, j), field, theirs)
                        total += np.float64(abs(to_send(v, divisor)))
            sums[lane] = total
        fold(sums, LANES, 1)
        return scale(sums[0], count)

    return scale_from


def _writer(codec: Codec, parts: Parts, keeps: bool, to_send, cores: Cores, settle):
    """Write the codes, and what follows from them."""
    fields, width, codes, value = parts.shape.fields, parts.shape.bits, parts.codes, parts.value
    inverse_of, encode, decode = cores.inverse, cores.encode, cores.decode
    key, draw = _random(codec)

    @block_function
    def write(kept, dst, a, residual, incoming, theirs, out, scale, count, row, divisor, seed,
              number):
        finite, inverse = scale == scale, inverse_of(scale)
        first, second = key(seed, number, 0), key(seed, number, 1)
        for j in range(cuda.threadIdx.x, row, cuda.blockDim.x):
            byte, packed = codes(incoming, j), np.uint32(0)
            for field in range(fields):
                i = field * row + j
                if i < count:
                    v = kept[i] if keeps else value(a, residual, i, byte, field, theirs)
                    code = np.uint32(0)
                    if finite:
                        bits = draw(first, second, np.uint32(i))
                        code = np.uint32(encode(to_send(v, divisor), inverse, bits))
                    packed = np.uint32(packed | np.uint32(code << np.uint32(field * width)))
                    settle(dst, residual, i, v, decode(code, scale), divisor, finite)
            store(out, j, np.uint8(packed))

    return write


@cache
def _random(codec: Codec):
    """(key of a block, draw of an element): see `dense_levels.draws`; 0 if nothing is random."""
    if codec.stochastic:
        return draws(scalar_function)
    return (scalar_function(lambda seed, number, which: np.uint32(0)),
            scalar_function(lambda first, second, i: np.uint32(0)))


def _settle(parts: Parts, emit: Emit, acc: str, dst: str):
    """(dst, residual, i, v, decoded, divisor, finite): write dst and the new residual."""
    acc_type, rest, feedback = parts.acc, remainder(acc), parts.feedback
    if emit is Emit.WIRE:
        @scalar_function
        def settle(dst, residual, i, v, decoded, divisor, finite):
            if feedback and finite:
                store(residual, i, acc_type(v - acc_type(decoded)))
    else:
        narrow, widen = narrower("float32", dst), widener(dst, acc)

        @scalar_function
        def settle(dst, residual, i, v, decoded, divisor, finite):
            stored = narrow(decoded)
            store(dst, i, stored)
            if feedback and finite:
                store(residual, i, rest(v, widen(stored), divisor))

    return settle
