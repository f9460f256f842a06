"""Device kernels of codecs with one code per element, and of no codec: a thread block per block.

The layout is that of the wire (`dense_layout`).  A block's codes are in `row` bytes; thread t of T
has the bytes t, t + T, ... and with each the elements whose codes it holds.  For 2 bits per code:

    byte       thread    elements
    0          0         0   row       2 row       3 row
    1          1         1   row + 1   2 row + 1   3 row + 1        bits 0-1, 2-3, 4-5, 6-7
    ...

so that neighbouring threads touch neighbouring elements and neighbouring bytes at every access.
float16, bfloat16 and no codec have no blocks; HALVES elements then are one, with a "byte" of 16
bits.  One launch; no thread block waits for another.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda

from collectives.kernels.codec import Codec, Emit
from collectives.kernels.cuda_memory import load, load_packed, scalar_function, store
from collectives.kernels.cuda_numbers import (
    STORED,
    finite_of,
    half_cores,
    narrower,
    remainder,
    to_single,
    unchanged_of,
    widener,
)
from collectives.kernels.floats import accumulator_of

HALVES = 1024
MOST_THREADS = 256
HEADER = 4  # bytes of a scale


class Shape(NamedTuple):
    """A wire's layout as constants for the compiler, and how many threads share a block."""

    block: int    # elements
    header: int   # bytes before a block's codes
    bits: int     # of a code
    code: type    # NumPy type that holds `fields` codes
    fields: int
    nbytes: int   # of a full block
    threads: int


class Cores(NamedTuple):
    """A codec's scalar cores as device functions; see `Levels.cores`."""

    scale: object
    inverse: object
    encode: object
    decode: object


class Parts(NamedTuple):
    """What kernels are made of: device functions and types."""

    shape: Shape
    acc: type
    feedback: bool
    cores: Cores | None   # of a codec with blocks
    bounds: object     # (number, n) -> elements in block `number`
    codes: object      # (incoming, j) -> byte j of the codes, uint32
    scale: object      # (incoming) -> its scale
    decode: object     # (byte, field, scale) -> float32
    value: object      # (a, residual, i, byte, field, scale) -> v


def make(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str,
         threads: int | None = None):
    """(kernel to compile, elements per thread block, threads per block)."""
    from collectives.kernels import cuda_blocks
    parts = parts_of(shape_of(codec, threads), codec, adds, feedback, a, accumulator_of(a, dst))
    if codec is not None and codec.statistic and emit in (Emit.WIRE, Emit.FINAL):
        kernel = cuda_blocks.make(codec, parts, emit, a, dst)
    else:
        kernel = _over_bytes(parts, a, dst, _element(codec, parts, emit, feedback, a, dst))
    return kernel, parts.shape.block, parts.shape.threads


def shape_of(codec: Codec | None, threads: int | None) -> Shape:
    """`threads` is a power of two, or None for what suits the block."""
    if codec is None or not codec.statistic:
        return Shape(HALVES, 0, 16, np.uint16, 1, 2 * HALVES, threads or MOST_THREADS)
    fields = 8 // codec.bits
    row = codec.block // fields
    suits = min(MOST_THREADS // 2 if fields == 8 else MOST_THREADS, max(32, _power_of_two(row)))
    return Shape(codec.block, HEADER, codec.bits, np.uint8, fields, HEADER + row, threads or suits)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@cache
def parts_of(shape: Shape, codec, adds, feedback, a, acc) -> Parts:
    """See `Parts`; kernels share them, so that each function is compiled once in a process."""
    block, code, header, has_scale = shape.block, shape.code, shape.header, shape.header > 0
    decode = _decoder(shape, codec)

    @scalar_function
    def bounds(number, n):
        return min(block, n - number * block)

    @scalar_function
    def codes(incoming, j):
        return np.uint32(load(incoming + header, j, code)) if adds else np.uint32(0)

    @scalar_function
    def scale(incoming):
        return load_packed(incoming) if adds and has_scale else np.float32(0)

    return Parts(shape, STORED[acc], feedback, _cores(codec), bounds, codes, scale, decode,
                 _value(adds, feedback, a, acc, decode))


@cache
def _cores(codec) -> Cores | None:
    return Cores(*codec.cores(scalar_function)) if codec and codec.statistic else None


@cache
def _decoder(shape: Shape, codec):
    if codec is None:
        return scalar_function(lambda byte, field, scale: scale)
    if not codec.statistic:
        from_half = half_cores(codec.name)[1]
        return scalar_function(lambda byte, field, scale: from_half(byte))
    of_code = _cores(codec).decode
    bits, mask = shape.bits, np.uint32(2**shape.bits - 1)
    return scalar_function(lambda byte, field, scale: of_code(
        np.uint32(np.uint32(byte >> np.uint32(field * bits)) & mask), scale))


def _value(adds, feedback, a, acc, decode):
    if not a:
        return None
    a_type, acc_type, widen = STORED[a], STORED[acc], widener(a, acc)

    @scalar_function
    def value(a, residual, i, byte, field, scale):
        v = widen(load(a, i, a_type))
        if adds:
            v = acc_type(v + acc_type(decode(byte, field, scale)))
        if feedback:
            v = acc_type(v + load(residual, i, acc_type))
        return v

    return value


def _over_bytes(parts: Parts, a: str, dst: str, element):
    """A kernel that calls element(...) for each element of its block, byte by byte."""
    block, _, _, _, fields, nbytes, _ = parts.shape
    bounds, codes, scale_of = parts.bounds, parts.codes, parts.scale
    a_step, dst_step, acc_step = (np.dtype(t).itemsize * block
                                  for t in (STORED[a], STORED[dst], parts.acc))

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        number = np.int64(cuda.blockIdx.x)
        count = bounds(number, n)
        row = (count + fields - 1) // fields
        incoming += number * nbytes
        scale = scale_of(incoming)
        for j in range(cuda.threadIdx.x, row, cuda.blockDim.x):
            byte = codes(incoming, j)
            for field in range(fields):
                i = field * row + j
                if i < count:
                    element(dst + number * dst_step, a + number * a_step,
                            residual + number * acc_step, wire + number * nbytes,
                            i, byte, field, scale, divisor)

    return kernel


def _element(codec, parts: Parts, emit: Emit, feedback: bool, a: str, dst: str):
    """element(dst, a, residual, wire, i, byte, field, scale, divisor)."""
    acc = accumulator_of(a, dst)
    if emit is Emit.PARTIAL:
        value = parts.value

        @scalar_function
        def element(dst, a, residual, wire, i, byte, field, scale, divisor):
            store(dst, i, value(a, residual, i, byte, field, scale))
    elif emit is Emit.DECODE:
        decode, narrow = parts.decode, narrower("float32", dst)

        @scalar_function
        def element(dst, a, residual, wire, i, byte, field, scale, divisor):
            store(dst, i, narrow(decode(byte, field, scale)))
    elif emit is Emit.VALUE:
        element = _valued(parts, feedback, dst, acc)
    else:
        element = _half(codec, parts, emit is Emit.FINAL, feedback, dst, acc)
    return element


def _valued(parts: Parts, feedback: bool, dst: str, acc: str):
    value, narrow, widen = parts.value, narrower(acc, dst), widener(dst, acc)
    acc_type, finite, rest = parts.acc, finite_of(acc), remainder(acc)
    unchanged = unchanged_of(acc)

    @scalar_function
    def element(dst, a, residual, wire, i, byte, field, scale, divisor):
        v = value(a, residual, i, byte, field, scale)
        stored = narrow(acc_type(v / acc_type(divisor)))
        if feedback:
            left = rest(v, widen(stored), divisor)
            store(residual, i, left if finite(v) else unchanged(residual, i))
        store(dst, i, stored)

    return element


def _half(codec, parts: Parts, final: bool, feedback: bool, dst: str, acc: str):
    value, acc_type, finite, single = parts.value, parts.acc, finite_of(acc), to_single(acc)
    to_half, from_half = half_cores(codec.name)
    narrow, widen = (narrower("float32", dst), widener(dst, acc)) if final else (None, None)
    rest, unchanged = remainder(acc), unchanged_of(acc)

    @scalar_function
    def encode_only(dst, a, residual, wire, i, byte, field, scale, divisor):
        v = value(a, residual, i, byte, field, scale)
        half = to_half(single(v))
        store(wire, i, half)
        if feedback:
            left = acc_type(v - acc_type(from_half(half)))
            store(residual, i, left if finite(v) else unchanged(residual, i))

    @scalar_function
    def encode_and_decode(dst, a, residual, wire, i, byte, field, scale, divisor):
        v = value(a, residual, i, byte, field, scale)
        half = to_half(single(acc_type(v / acc_type(divisor))))
        stored = narrow(from_half(half))
        store(wire, i, half)
        store(dst, i, stored)
        if feedback:
            left = rest(v, widen(stored), divisor)
            store(residual, i, left if finite(v) else unchanged(residual, i))

    return encode_and_decode if final else encode_only
