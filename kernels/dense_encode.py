"""Kernels with a wire to write: WIRE and FINAL.  See `dense` for their shape."""

import numpy as np

from collectives.kernels import floats
from collectives.kernels.codec import Codec
from collectives.kernels.dense_levels import draws
from collectives.kernels.dense_parts import Parts, in_field, inlined
from collectives.kernels.scalars import (
    LANES,
    bits_float,
    float_bits,
    load,
    load_packed,
    stack_lanes,
    store,
    store_packed,
)

_MAGNITUDE, _FINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F7FFFFF)
_LARGEST = np.finfo(np.float64).max
_NAN, _ZERO = np.float32(np.nan), np.float32(0)


def make(codec: Codec, parts: Parts, final: bool):
    """The body for `dense`: writes one block of the wire, and of dst if `final`."""
    to_encode = _to_encode(parts, final)
    codes, results = _codes(codec, parts, to_encode, final), _results(parts, final)
    if codec.statistic:
        return _block(codec, parts, to_encode, codes, results)

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, divisor, seed, number):
        codes(a, incoming, _ZERO, residual, wire, _ZERO, _ZERO, count, row, divisor, seed, number)
        results(dst, wire, _ZERO, count, row)

    return body


def _block(codec: Codec, parts: Parts, to_encode, codes, results):
    scale_of, inverse, _, _ = codec.cores(inlined)
    statistic = {"peak": _peak, "total": _total}[codec.statistic](parts, to_encode, scale_of)
    adds, shared = parts.adds, parts.wire.fields > 1

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, divisor, seed, number):
        their_scale = load_packed(incoming) if adds else _ZERO
        scale = statistic(a, incoming + 4, their_scale, residual, count, row, divisor)
        store_packed(wire, scale)
        finite = scale == scale
        if shared or not finite:
            for j in range(row):
                store(wire + 4, j, np.uint8(0))
        if finite:
            codes(a, incoming + 4, their_scale, residual, wire + 4, scale, inverse(scale), count,
                  row, divisor, seed, number)
        results(dst, wire + 4, scale, count, row)

    return body


def _to_encode(parts: Parts, final: bool):
    """(v, ratio) -> float32: what is encoded."""
    single, over = floats.to_single(parts.acc), floats.quotient(parts.acc)
    if final:
        return inlined(lambda v, ratio: single(over(v, ratio)))
    return inlined(lambda v, ratio: single(v))


def _peak(parts: Parts, to_encode, scale_of):
    """Scale of max |x|, as the maximum of bit patterns: NaN > Inf > numbers."""
    fields, bits, value, (a_size, _, acc_size) = (
        parts.wire.fields, parts.wire.bits, parts.value, parts.sizes)
    acc = floats.STORED[parts.acc]

    @inlined
    def statistic(a, codes, scale, residual, count, row, divisor):
        peak, ratio = np.uint32(0), acc(divisor)
        for field in range(fields):
            first, shift = field * row, np.uint32(field * bits)
            mine, kept = a + first * a_size, residual + first * acc_size
            for j in range(in_field(field, count, row)):
                x = to_encode(value(mine, codes, scale, shift, kept, j), ratio)
                size = np.uint32(float_bits(x) & _MAGNITUDE)
                peak = size if size > peak else peak
        return scale_of(bits_float(peak)) if peak <= _FINITE else _NAN

    return statistic


def _total(parts: Parts, to_encode, scale_of):
    """Scale of sum |x|, in the fixed order that `codecs.sign` states."""
    fields, bits, value, (a_size, _, acc_size) = (
        parts.wire.fields, parts.wire.bits, parts.value, parts.sizes)
    acc = floats.STORED[parts.acc]

    @inlined
    def statistic(a, codes, scale, residual, count, row, divisor):
        lanes, ratio = stack_lanes(), acc(divisor)
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


def _codes(codec: Codec, parts: Parts, to_encode, final: bool):
    """The loop that writes codes and residual."""
    fields, bits, (a_size, _, acc_size) = parts.wire.fields, parts.wire.bits, parts.sizes
    value, encode, put, feedback = parts.value, parts.encode, parts.put, parts.feedback
    acc, keep = floats.STORED[parts.acc], _keeper(codec, parts, final)
    key, draw = _draws(codec.stochastic)

    @inlined
    def write(a, theirs, their_scale, residual, codes, scale, inverse, count, row, divisor, seed,
              number):
        one, two, ratio = key(seed, number, 0), key(seed, number, 1), acc(divisor)
        for field in range(fields):
            first, shift = field * row, np.uint32(field * bits)
            mine, kept = a + first * a_size, residual + first * acc_size
            for j in range(in_field(field, count, row)):
                v = value(mine, theirs, their_scale, shift, kept, j)
                code = encode(to_encode(v, ratio), inverse, draw(one, two, first + j))
                put(codes, j, shift, code)
                if feedback:
                    keep(v, code, scale, ratio, kept, j)

    return write


def _draws(stochastic: bool):
    if stochastic:
        return draws(inlined)
    return (inlined(lambda seed, block, which: np.uint32(0)),
            inlined(lambda first, second, element: np.uint32(0)))


def _keeper(codec: Codec, parts: Parts, final: bool):
    """(v, code, scale, ratio, residual, j): write the new residual."""
    acc, decode, rest = floats.STORED[parts.acc], parts.decode, floats.remainder(parts.acc)
    rounded = floats.rounder(parts.acc, parts.dst) if final else None
    where_finite = floats.where_finite(parts.acc)

    def of_wire(v, code, scale, ratio, residual, j):
        store(residual, j, v - acc(decode(code, scale)))

    def of_final(v, code, scale, ratio, residual, j):
        store(residual, j, rest(v, rounded(acc(decode(code, scale))), ratio))

    def of_wire_each(v, code, scale, ratio, residual, j):
        store(residual, j, where_finite(v, v - acc(decode(code, scale)), load(residual, j, acc)))

    def of_final_each(v, code, scale, ratio, residual, j):
        store(residual, j, where_finite(v, rest(v, rounded(acc(decode(code, scale))), ratio),
                                        load(residual, j, acc)))

    # Blocks that are not finite do not get here.
    each = [of_wire_each, of_final_each] if not codec.statistic else [of_wire, of_final]
    return inlined(each[final])


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
