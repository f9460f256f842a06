"""Host kernels of the codecs that send pairs: TopK and Threshold.

    PARTIAL    dst = a, then the pairs that arrive are added to it
    DECODE     dst = 0, then the pairs that arrive are put into it
    VALUE      by pieces, in which a + incoming lies on the stack
    WIRE       v is formed where it stays as residual, and a floor is found for its keys (`select`);
    FINAL      one more pass writes what reaches it, and leaves v - what was sent behind

v = (a + incoming) + residual is formed in the residual itself; without one, in dst if something is
added (`Codec.needs_work`), else v is a, widened where it is read.  FINAL then decodes its own wire
into dst, which so may be a.

Where a + incoming is not finite, that is sent and the residual stays as it was; as its place is not
free for v, passes then fetch a + incoming again (`View.odd`): slower, but only then.  Where it is
the residual that is not finite, or makes a sum overflow, the residual becomes 0 when that is sent.

Measured on one core against copying the same float32 (64 MB cold; normal, Laplace and uniform
numbers), encoding in calls of 256 Ki elements:

    topk:0.01                   0.5 to 0.7; 0.35 to 0.5 in one call; 0.3 with a residual
    threshold, about 1 % kept   0.6 to 0.8; relative 0.4 to 0.55; 0.34 with a residual
    decode_add, decode          4 and 1.3
"""

import numpy as np

from collectives.kernels import floats
from collectives.kernels.codec import Codec, Emit
from collectives.kernels.floats import STORED, accumulator_of
from collectives.kernels.incoming import (
    apart,
    decoder,
    incoming,
    inline,
    leftover,
    opener,
)
from collectives.kernels.lanes import least, reserve, where_finite
from collectives.kernels.outgoing import sender
from collectives.kernels.scalars import float_bits, load, store
from collectives.kernels.select import SCRATCH_NBYTES
from collectives.kernels.view import View, given

PIECE = 512
PIECE_NBYTES = 8 * PIECE


def make(codec: Codec, emit: Emit, adds: bool, feedback: bool, a: str, dst: str):
    """The Python function of a kernel; see `codec` for what it does, `fused` for its arguments.

    Raises
    ------
    ValueError
        For FINAL of a sum that has no place: emit PARTIAL, then FINAL of that.
    """
    accumulator = accumulator_of(a, dst)
    open_wire = opener(codec.name) if adds or emit == Emit.DECODE else _nothing
    if emit == Emit.DECODE:
        return _decode(open_wire, decoder(dst))
    if emit == Emit.PARTIAL:
        return _partial(open_wire, _summing(a, accumulator))
    if emit == Emit.VALUE:
        return _value(open_wire, feedback, a, dst, accumulator)
    if emit == Emit.FINAL and adds and not feedback:
        raise ValueError(f"{codec.name}: FINAL with adds needs feedback: expected PARTIAL, then "
                         "FINAL of its sum")
    prepare = _preparation(adds, feedback, a, accumulator)
    final = emit == Emit.FINAL
    send = sender(codec.name, accumulator if adds or feedback else a, accumulator, final, feedback,
                  a, dst if final else accumulator)
    return _encode(open_wire, prepare, send, STORED[accumulator], final,
                   decoder(dst) if final else _nothing_decoded)


@inline
def _nothing(wire, n, parameter):
    return wire, wire, 0


@inline
def _nothing_decoded(dst, n, values, indices, count):
    pass


def _decode(open_wire, decode):
    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        values, indices, count = open_wire(incoming, n, parameter)
        decode(dst, n, values, indices, count)

    return kernel


def _partial(open_wire, total):
    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        values, indices, count = open_wire(incoming, n, parameter)
        total(dst, a, values, indices, count, n)

    return kernel


def _summing(a: str, accumulator: str):
    """`total(dst, a, values, indices, count, n)`: dst = a + incoming; dst may be a."""
    stored, widen, scatter = STORED[a], floats.widener(a, accumulator), incoming(
        accumulator).scatter

    @apart
    def total(dst, a, values, indices, count, n):
        if dst != a:
            for i in range(n):
                store(dst, i, widen(load(a, i, stored)))
        scatter(dst, n, values, indices, count)

    return total


def _value(open_wire, feedback: bool, a: str, dst: str, accumulator: str):
    real, size = STORED[accumulator], np.dtype(STORED[accumulator]).itemsize
    narrow, dst_size = floats.narrower(accumulator, dst), np.dtype(STORED[dst]).itemsize
    fetch, share, settle = given(a, accumulator), floats.quotient(accumulator), _sharing(
        accumulator, dst)

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        values, indices, count = open_wire(incoming, n, parameter)
        total, cursor, by = reserve(PIECE_NBYTES), 0, real(divisor)
        for start in range(0, n, PIECE):
            length = least(PIECE, n - start)
            cursor = fetch(total, a, start, length, n, values, indices, count, cursor)
            if feedback:
                settle(total, residual + start * size, length, by)
            out = dst + start * dst_size
            for j in range(length):
                store(out, j, narrow(share(load(total, j, real), by)))

    return kernel


def _sharing(accumulator: str, dst: str):
    """`settle(total, residual, length, divisor)`: total += residual, which keeps what rounding to
    `dst` drops of a `divisor`-th."""
    real, rest = STORED[accumulator], leftover(accumulator, dst)
    share = floats.quotient(accumulator)

    @apart
    def settle(total, residual, length, divisor):
        for j in range(length):
            old = load(residual, j, real)
            v = load(total, j, real) + old
            store(total, j, v)
            store(residual, j, where_finite(v, rest(v, share(v, divisor), divisor), old))

    return settle


def _preparation(adds: bool, feedback: bool, a: str, accumulator: str):
    """`prepare(dst, a, values, indices, count, residual, n, piece) -> (source, odd)` of a View."""
    real, size = STORED[accumulator], np.dtype(STORED[accumulator]).itemsize
    fetch, total = given(a, accumulator), _summing(a, accumulator)

    @apart
    def in_residual(dst, a, values, indices, count, residual, n, piece):
        odd, cursor = np.uint32(0), 0
        for start in range(0, n, PIECE):
            length = least(PIECE, n - start)
            cursor = fetch(piece, a, start, length, n, values, indices, count, cursor)
            here = residual + start * size
            for j in range(length):
                x, old = load(piece, j, real), load(here, j, real)
                store(here, j, where_finite(x, x + old, old))
                odd |= float_bits(np.float32(x - x))  # no bit is set in 0.0
        return residual, np.int64(odd)

    @apart
    def in_work(dst, a, values, indices, count, residual, n, piece):
        total(dst, a, values, indices, count, n)
        return dst, 0

    @inline
    def in_place(dst, a, values, indices, count, residual, n, piece):
        return a, 0

    return in_residual if feedback else in_work if adds else in_place


def _encode(open_wire, prepare, send, real, final: bool, decode):
    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        if n == 0:
            return
        piece, scratch = reserve(PIECE_NBYTES), reserve(SCRATCH_NBYTES)
        values, indices, count = open_wire(incoming, n, parameter)
        source, odd = prepare(dst, a, values, indices, count, residual, n, piece)
        by = real(divisor if final else 1)
        view = View(source, n, by, odd, piece, a, values, indices, count)
        own = send(view, residual, wire, parameter, scratch)
        decode(dst, n, own.values, own.indices, own.count)

    return kernel
