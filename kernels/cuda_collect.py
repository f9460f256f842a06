"""Device kernels that encode pairs, by one thread block: prepare and frame, then collect.

    collect    words of 32 elements, a bit for each that is sent, by all threads:

               elements   ...x.....x.... | ......x......... |        neighbours read neighbours
               bits       above the floor, and at the floor (ties)   atomic or, shared memory
               thread t   counts the bits of its words; prefix sums over the threads tell where its
                          pairs go; then it writes them, in ascending order
    decode     FINAL: what was sent, into dst

Bits are for as many elements as shared memory has words for; longer arrays take several rounds.
"""

from functools import cache

import numpy as np
from numba import cuda

from collectives.kernels.codec import Emit
from collectives.kernels.cuda_frame import View, framer, preparation, sender, value_reader
from collectives.kernels.cuda_memory import block_function, load, scalar_function, store
from collectives.kernels.cuda_numbers import (
    STORED,
    finite_of,
    is_number,
    narrower,
    size_bits,
    widener,
)
from collectives.kernels.cuda_select import BUCKETS, clear, key_of
from collectives.kernels.cuda_threads import sum_before
from collectives.kernels.floats import accumulator_of
from collectives.kernels.select import SUMS


def make(name: str, emit: Emit, open_wire, adds, feedback, a, dst, threads, tile_length, words):
    """The kernel to compile, of WIRE or FINAL; see `cuda_sparse.make`."""
    acc, rows = accumulator_of(a, dst), max(1, threads // SUMS)
    acc_type, final = STORED[acc], emit is Emit.FINAL
    sums_count, bits_count = rows * SUMS, max(BUCKETS, 2 * words)
    value_of = value_reader(acc if adds or feedback else a, a, acc, adds, feedback)
    send = sender(acc, final)
    read = scalar_function(lambda view, i: send(value_of(view, i), view.divisor))
    prepare = preparation(adds, feedback, a, acc, tile_length)
    frame_of = framer(name, read, rows)
    settle = _settling(acc, dst if final else acc) if feedback else _nothing
    collect = _collector(value_of, send, settle, words)
    decode = _result(dst) if final else _nothing

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        tile = cuda.shared.array(tile_length, acc_type)
        bits = cuda.shared.array(bits_count, np.uint32)
        scan = cuda.shared.array(threads, np.int32)
        found = cuda.shared.array(2, np.int64)
        sums = cuda.shared.array(sums_count, np.float64)
        values, indices, count = open_wire(incoming, n, parameter)
        source, odd = prepare(dst, a, values, indices, count, residual, n, tile)
        view = View(source, n, divisor if final else 1, odd, a, values, indices, count)
        frame = frame_of(view, wire, parameter, bits, scan, found, sums)
        collect(view, residual, frame, bits, scan)
        decode(dst, n, frame.values, frame.indices, frame.count)

    return kernel


@scalar_function
def _nothing(one, two, three, four, five):
    pass


def _collector(value_of, send, settle, words: int):
    """`collect(view, residual, frame, bits, scan)`: write the wire and the residual.

    words : for bits above the floor; as many for those at it
    """
    mark, place = _marker(value_of, send, settle, words), _placer(value_of, send, settle, words)

    @block_function
    def all_of_it(view, residual, frame):
        for i in range(cuda.threadIdx.x, view.n, cuda.blockDim.x):
            v = value_of(view, i)
            value = send(v, view.divisor)
            sends = key_of(value) >= frame.floor
            store(frame.values, i, value if sends else np.float32(0))
            if sends:
                settle(residual, i, v, value, view.divisor)

    @block_function
    def collect(view, residual, frame, bits, scan):
        if frame.indices == 0:
            all_of_it(view, residual, frame)
        else:
            sent, at = np.int64(0), np.int64(0)  # so far: above the floor; at it
            for start in range(0, view.n, 32 * words):
                clear(bits, 2 * words)
                mark(view, residual, frame, bits, start)
                more, ties = place(view, residual, frame, bits, start, sent, at, scan)
                sent += more
                at += ties
        cuda.syncthreads()

    return collect


@cache
def _marker(value_of, send, settle, words: int):
    """Set the bits of the elements from `start` on; settle what is not finite and not sent."""
    @block_function
    def mark(view, residual, frame, bits, start):
        for i in range(start + cuda.threadIdx.x, min(start + 32 * words, view.n), cuda.blockDim.x):
            v = value_of(view, i)
            value = send(v, view.divisor)
            key, word = key_of(value), (i - start) >> 5
            bit = np.uint32(np.uint32(1) << np.uint32(i & 31))
            if key > frame.floor:
                cuda.atomic.or_(bits, word, bit)
            elif key == frame.floor:
                cuda.atomic.or_(bits, words + word, bit)
            elif not is_number(size_bits(value)):
                settle(residual, i, v, value, view.divisor)
        cuda.syncthreads()

    return mark


@cache
def _placer(value_of, send, settle, words: int):
    """Write the pairs whose bits are set -> (how many are above the floor, how many at it)."""
    @block_function
    def place(view, residual, frame, bits, start, sent, at, scan):
        each = max(words // cuda.blockDim.x, 1)
        first = cuda.threadIdx.x * each
        last = min(first + each, words)
        mine, mine_at = np.int32(0), np.int32(0)
        for word in range(first, last):
            mine = np.int32(mine + np.int32(cuda.popc(bits[word])))
            mine_at = np.int32(mine_at + np.int32(cuda.popc(bits[words + word])))
        before, total = sum_before(scan, mine)
        before_at, total_at = sum_before(scan, mine_at)
        sent, at = sent + before, at + before_at
        for word in range(first, last):
            left = np.uint32(bits[word] | bits[words + word])
            while left != 0:
                bit = np.int64(cuda.ffs(left)) - 1
                left = np.uint32(left & np.uint32(left - np.uint32(1)))
                is_tie = (np.uint32(bits[words + word] >> np.uint32(bit)) & np.uint32(1)) != 0
                i, sends = start + 32 * word + bit, not is_tie or at < frame.ties
                v = value_of(view, i)
                value = send(v, view.divisor)
                if sends:
                    slot = sent + min(at, frame.ties)
                    store(frame.values, slot, value)
                    store(frame.indices, slot, np.uint32(i))
                if sends or not is_number(size_bits(value)):
                    settle(residual, i, v, value, view.divisor)
                if is_tie:
                    at += 1
                else:
                    sent += 1
        cuda.syncthreads()
        return total, total_at

    return place


@cache
def _settling(acc: str, dst: str):
    """(residual, i, v, value, divisor): leave v - divisor times `value` as `dst` has it."""
    number, narrow, widen, finite = (
        STORED[acc], narrower("float32", dst), widener(dst, acc), finite_of(acc))

    @scalar_function
    def settle(residual, i, v, value, divisor):
        rest = number(v - number(number(divisor) * widen(narrow(value))))
        if finite(rest):
            store(residual, i, rest)
        elif finite(v) or not finite(load(residual, i, number)):
            store(residual, i, number(0))

    return settle


@cache
def _result(dst: str):
    """(dst, n, values, indices, count): n elements from the pairs just written."""
    stored, narrow = STORED[dst], narrower("float32", dst)

    @block_function
    def decode(dst, n, values, indices, count):
        for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            dense = indices == 0
            store(dst, i, narrow(load(values, i, np.float32)) if dense else stored(0))
        cuda.syncthreads()
        if indices != 0:
            for j in range(cuda.threadIdx.x, count, cuda.blockDim.x):
                i = np.int64(load(indices, j, np.uint32))
                store(dst, i, narrow(load(values, j, np.float32)))

    return decode
