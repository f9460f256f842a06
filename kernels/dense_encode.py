"""Kernels with a wire to write: WIRE and FINAL.  See `dense` for their shape."""

import numpy as np

from collectives.kernels import floats
from collectives.kernels.codec import Codec
from collectives.kernels.dense_levels import draws
from collectives.kernels.dense_parts import Parts, in_field, inlined
from collectives.kernels.scalars import (
    LANES,
    LINE_NBYTES,
    bits_float,
    load,
    load_packed,
    prefetch,
    stack_lanes,
    store,
    store_packed,
)

_FINITE, _LARGEST = np.uint32(0x7F7FFFFF), np.finfo(np.float64).max
_NAN, _ZERO = np.float32(np.nan), np.float32(0)


def make(codec: Codec, parts: Parts, final: bool):
    """The kernel that writes the wire, and dst if `final`."""
    block, nbytes, header, bits, fields, _ = parts.wire
    (a_size, dst_size, acc_size), acc = parts.sizes, floats.STORED[parts.acc]
    value, code_of, worth, field_of, put = (
        parts.value, parts.code, parts.worth, parts.field, parts.put)
    to_encode = floats.encodable(parts.acc, final)
    statistic, inverse = _statistic(codec, parts, to_encode)
    left = floats.leftover(parts.acc, parts.dst if final else "", not codec.statistic)
    (key, draw), results = _draws(codec), _results(parts, final)
    adds, feedback, fetch = parts.adds, parts.feedback, _fetcher(parts)

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        ratio = acc(divisor)
        for b in range((n + (block - 1)) // block):
            count = n - b * block if n - b * block < block else block
            row = (count + (fields - 1)) // fields
            theirs, ours = incoming + b * nbytes + header, wire + b * nbytes + header
            mine, kept = a + b * block * a_size, residual + b * block * acc_size
            their_scale = load_packed(theirs - header) if adds and header else _ZERO
            scale = statistic(mine, theirs, their_scale, kept, count, row, ratio)
            finite = scale == scale
            if header:
                store_packed(ours - header, scale)
                if fields > 1 or not finite:
                    for j in range(row):
                        store(ours, j, np.uint8(0))
            one, two, unit = key(seed, b, 0), key(seed, b, 1), inverse(scale)
            for field in range(fields if finite else 0):
                first, shift = field * row, np.uint32(field * bits)
                my, old = mine + first * a_size, kept + first * acc_size
                fetch(my + block * a_size, old + block * acc_size, row)
                for j in range(in_field(field, count, row)):
                    v = value(my, theirs, their_scale, shift, old, j)
                    code = code_of(to_encode(v, ratio), unit, draw(one, two, first + j))
                    put(ours, j, shift, field_of(code))
                    if feedback:
                        store(old, j, left(v, acc(worth(code, scale)), ratio, load(old, j, acc)))
            results(dst + b * block * dst_size, ours, scale, count, row)

    return kernel


def _fetcher(parts: Parts):
    """(a, residual, row): ask for what the next block will read there.

    The processor itself fetches ahead only while it reads new memory, and not beyond a page: so
    nothing while a block is gone over for the second time.
    """
    feedback, (a_size, _, acc_size) = parts.feedback, parts.sizes
    if not parts.wire.header:
        return inlined(lambda a, residual, row: None)

    @inlined
    def fetch(a, residual, row):
        for line in range(0, row * a_size, LINE_NBYTES):
            prefetch(a + line)
        if feedback:
            for line in range(0, row * acc_size, LINE_NBYTES):
                prefetch(residual + line)

    return fetch


def _draws(codec: Codec):
    if codec.stochastic:
        return draws(inlined)
    return (inlined(lambda seed, block, which: np.uint32(0)),
            inlined(lambda first, second, element: np.uint32(0)))


def _statistic(codec: Codec, parts: Parts, to_encode):
    """(a, codes, scale, residual, count, row, ratio) -> scale, NaN if not finite;  its inverse."""
    if not codec.statistic:
        return (inlined(lambda a, codes, scale, residual, count, row, ratio: _ZERO),
                inlined(lambda scale: scale))
    scale_of, inverse, _, _ = codec.cores(inlined)
    make = {"peak": _peak, "total": _total}[codec.statistic]
    return make(parts, to_encode, scale_of), inverse


def _peak(parts: Parts, to_encode, scale_of):
    """Scale of max |x|, as the maximum of bit patterns."""
    fields, bits, value, (a_size, _, acc_size) = (
        parts.wire.fields, parts.wire.bits, parts.value, parts.sizes)
    larger = floats.larger

    @inlined
    def statistic(a, codes, scale, residual, count, row, ratio):
        peak = np.uint32(0)
        for field in range(fields):
            first, shift = field * row, np.uint32(field * bits)
            mine, kept = a + first * a_size, residual + first * acc_size
            for j in range(in_field(field, count, row)):
                peak = larger(peak, to_encode(value(mine, codes, scale, shift, kept, j), ratio))
        return scale_of(bits_float(peak)) if peak <= _FINITE else _NAN

    return statistic


def _total(parts: Parts, to_encode, scale_of):
    """Scale of sum |x|, in the fixed order that `codecs.sign` states."""
    fields, bits, value, (a_size, _, acc_size) = (
        parts.wire.fields, parts.wire.bits, parts.value, parts.sizes)

    @inlined
    def statistic(a, codes, scale, residual, count, row, ratio):
        lanes = stack_lanes()
        for k in range(LANES):
            store(lanes, k, np.float64(0))
        for field in range(fields):
            here, shift = in_field(field, count, row), np.uint32(field * bits)
            for start in range(0, here, LANES):
                first = field * row + start
                mine, kept, theirs = a + first * a_size, residual + first * acc_size, codes + start
                for k in range(LANES if here - start > LANES else here - start):
                    x = to_encode(value(mine, theirs, scale, shift, kept, k), ratio)
                    store(lanes, k, load(lanes, k, np.float64) + np.float64(abs(x)))
        half = LANES // 2
        while half > 0:
            for k in range(half):
                store(lanes, k, load(lanes, k, np.float64) + load(lanes, k + half, np.float64))
            half //= 2
        total = load(lanes, 0, np.float64)
        return scale_of(total, count) if total <= _LARGEST else _NAN

    return statistic


def _results(parts: Parts, final: bool):
    """The loop that writes dst from the codes just written."""
    if not final:
        return inlined(lambda dst, codes, scale, count, row: None)
    fields, bits, dst_size = parts.wire.fields, parts.wire.bits, parts.sizes[1]
    get, decode, acc = parts.get, parts.decode, floats.STORED[parts.acc]
    narrow = floats.narrower(parts.acc, parts.dst)

    @inlined
    def results(dst, codes, scale, count, row):
        for field in range(fields):
            out, shift = dst + field * row * dst_size, np.uint32(field * bits)
            for j in range(in_field(field, count, row)):
                store(out, j, narrow(acc(decode(get(codes, j, shift), scale))))

    return results
