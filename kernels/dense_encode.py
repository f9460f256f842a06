"""Kernels with a wire to write: WIRE and FINAL.  See `dense` for their shape."""

import numpy as np

from collectives.kernels.codec import Codec
from collectives.kernels.dense_levels import draws
from collectives.kernels.dense_parts import (
    Parts,
    decoded,
    host_halves,
    inlined,
    quotient,
    remainder,
    scale_at,
)
from collectives.kernels.scalars import (
    LANES,
    bits_float,
    float_bits,
    load,
    shift_left,
    stack_lanes,
    store,
    store_packed,
)

_MAGNITUDE, _FINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F7FFFFF)
_LARGEST = np.finfo(np.float64).max
_NAN = np.float32(np.nan)


def make(codec: Codec, parts: Parts, final: bool):
    """The body for `dense`: writes one block of the wire, and of dst if `final`."""
    to_encode, results = _to_encode(parts, final), _results(parts, final)
    if codec.statistic:
        return _block(codec, parts, to_encode, _codes(codec, parts, to_encode, final), results)
    codes, scale = _codes(codec, parts, to_encode, final), np.float32(0)

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, full, divisor, seed, number):
        codes(a, incoming, scale, residual, wire, scale, scale, count, row, full, divisor, seed,
              number)
        results(dst, wire, scale, count, row, full)

    return body


def _block(codec: Codec, parts: Parts, to_encode, codes, results):
    scale_of, inverse, _, _ = codec.cores(inlined)
    statistic = {"peak": _peak, "total": _total}[codec.statistic](parts, to_encode, scale_of)
    incoming_scale = scale_at(parts.wire, parts.adds)

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, full, divisor, seed, number):
        their_scale = incoming_scale(incoming)
        scale = statistic(a, incoming + 4, their_scale, residual, count, row, full, divisor)
        store_packed(wire, scale)
        if scale == scale:
            codes(a, incoming + 4, their_scale, residual, wire + 4, scale, inverse(scale), count,
                  row, full, divisor, seed, number)
        else:
            for j in range(row):
                store(wire + 4, j, np.uint8(0))
        results(dst, wire + 4, scale, count, row, full)

    return body


def _to_encode(parts: Parts, final: bool):
    """(v, divisor) -> float32: what is encoded."""
    single, over = parts.single, quotient(parts.acc)
    if final:
        return inlined(lambda v, divisor: single(over(v, divisor)))
    return inlined(lambda v, divisor: single(v))


def _peak(parts: Parts, to_encode, scale_of):
    """Scale of max |x|, as the maximum of bit patterns: NaN > Inf > numbers."""
    fields, bits, in_field, value = parts.wire.fields, parts.wire.bits, parts.in_field, parts.value
    a_size, acc_size = parts.a_size, parts.acc_size

    @inlined
    def peak_of(a, codes, scale, shift, residual, count, divisor, peak):
        for j in range(count):
            x = to_encode(value(a, codes, scale, shift, residual, j), divisor)
            size = np.uint32(float_bits(x) & _MAGNITUDE)
            peak = size if size > peak else peak
        return peak

    @inlined
    def statistic(a, codes, scale, residual, count, row, full, divisor):
        peak = np.uint32(0)
        for field in range(fields):
            first = field * row
            peak = peak_of(a + first * a_size, codes, scale, np.uint32(field * bits),
                           residual + first * acc_size, in_field(field, count, row, full), divisor,
                           peak)
        return scale_of(bits_float(peak)) if peak <= _FINITE else _NAN

    return statistic


def _total(parts: Parts, to_encode, scale_of):
    """Scale of sum |x|, in the fixed order that `codecs.sign` states."""
    fields, bits, in_field, value = parts.wire.fields, parts.wire.bits, parts.in_field, parts.value
    a_size, acc_size = parts.a_size, parts.acc_size

    @inlined
    def add_field(lanes, a, codes, scale, shift, residual, count, divisor):
        for start in range(0, count, LANES):
            mine, theirs, kept = a + start * a_size, codes + start, residual + start * acc_size
            for k in range(LANES if count - start > LANES else count - start):
                x = to_encode(value(mine, theirs, scale, shift, kept, k), divisor)
                store(lanes, k, load(lanes, k, np.float64) + np.float64(abs(x)))

    @inlined
    def statistic(a, codes, scale, residual, count, row, full, divisor):
        lanes = stack_lanes()
        for k in range(LANES):
            store(lanes, k, np.float64(0))
        for field in range(fields):
            first = field * row
            add_field(lanes, a + first * a_size, codes, scale, np.uint32(field * bits),
                      residual + first * acc_size, in_field(field, count, row, full), divisor)
        half = LANES // 2
        while half > 0:
            for k in range(half):
                store(lanes, k, load(lanes, k, np.float64) + load(lanes, k + half, np.float64))
            half //= 2
        total = load(lanes, 0, np.float64)
        return scale_of(total, count) if total <= _LARGEST else _NAN

    return statistic


def _codes(codec: Codec, parts: Parts, to_encode, final: bool):
    """The loops that write codes and residual."""
    fields, bits, in_field = parts.wire.fields, parts.wire.bits, parts.in_field
    a_size, acc_size = parts.a_size, parts.acc_size
    stochastic, (key, _) = codec.stochastic, draws(inlined)
    element, later = (_code(codec, parts, to_encode, final, first) for first in (True, False))

    @inlined
    def write_first(a, theirs, their_scale, shift, residual, codes, scale, inverse, count, divisor,
                    one, two, position):
        for j in range(count):
            element(a, theirs, their_scale, shift, residual, codes, scale, inverse, divisor, one,
                    two, position, j)

    @inlined
    def write_later(a, theirs, their_scale, shift, residual, codes, scale, inverse, count, divisor,
                    one, two, position):
        for j in range(count):
            later(a, theirs, their_scale, shift, residual, codes, scale, inverse, divisor, one,
                  two, position, j)

    @inlined
    def write(a, theirs, their_scale, residual, codes, scale, inverse, count, row, full, divisor,
              seed, number):
        one = key(seed, number, 0) if stochastic else np.uint32(0)
        two = key(seed, number, 1) if stochastic else np.uint32(0)
        write_first(a, theirs, their_scale, np.uint32(0), residual, codes, scale, inverse,
                    in_field(0, count, row, full), divisor, one, two, 0)
        for field in range(1, fields):
            first = field * row
            write_later(a + first * a_size, theirs, their_scale, np.uint32(field * bits),
                        residual + first * acc_size, codes, scale, inverse,
                        in_field(field, count, row, full), divisor, one, two, first)

    return write


def _code(codec: Codec, parts: Parts, to_encode, final: bool, first: bool):
    """Encode element j; its field joins those already in its byte, unless it is the first."""
    value, acc, code, feedback = parts.value, parts.acc, parts.wire.code, parts.feedback
    encode, decode = _encoder(codec), _decoder(codec)
    kept, (_, draw), stochastic = _kept(codec, parts, final), draws(inlined), codec.stochastic

    @inlined
    def element(a, theirs, their_scale, shift, residual, codes, scale, inverse, divisor, one, two,
                position, j):
        v = value(a, theirs, their_scale, shift, residual, j)
        random = draw(one, two, np.uint32(position + j)) if stochastic else np.uint32(0)
        field = encode(to_encode(v, divisor), inverse, random)
        if first:
            store(codes, j, code(field))
        else:
            store(codes, j, code(shift_left(field, shift) | np.uint32(load(codes, j, code))))
        if feedback:
            store(residual, j, kept(v, acc(decode(field, scale)), divisor, residual, j))

    return element


def _encoder(codec: Codec):
    if codec.statistic:
        return codec.cores(inlined)[2]
    encode = host_halves(codec)[0]
    return inlined(lambda x, inverse, draw: encode(x))


def _decoder(codec: Codec):
    if codec.statistic:
        return codec.cores(inlined)[3]
    decode = host_halves(codec)[1]
    return inlined(lambda field, scale: decode(field))


def _kept(codec: Codec, parts: Parts, final: bool):
    """(v, decoded, divisor, residual, j) -> the new residual."""
    acc, infinity, rest = parts.acc, parts.acc(np.inf), remainder(parts.acc)
    narrow, widen = parts.narrow, parts.widen

    @inlined
    def of_final(v, decoded, divisor):
        return rest(v, widen(narrow(decoded)), divisor)

    @inlined
    def of_wire(v, decoded, divisor):
        return v - decoded

    lost = of_final if final else of_wire
    if codec.statistic:  # only finite blocks get here
        return inlined(lambda v, decoded, divisor, residual, j: lost(v, decoded, divisor))
    return inlined(lambda v, decoded, divisor, residual, j: (
        lost(v, decoded, divisor) if abs(v) < infinity else load(residual, j, acc)))


def _results(parts: Parts, final: bool):
    """The loops that write dst from the codes just written."""
    if not final:
        return inlined(lambda dst, codes, scale, count, row, full: None)
    write, fields, bits, in_field = (
        decoded(parts), parts.wire.fields, parts.wire.bits, parts.in_field)
    dst_size = parts.dst_size

    @inlined
    def write_field(dst, codes, scale, shift, count):
        for j in range(count):
            write(dst, codes, scale, shift, j)

    @inlined
    def results(dst, codes, scale, count, row, full):
        for field in range(fields):
            write_field(dst + field * row * dst_size, codes, scale, np.uint32(field * bits),
                        in_field(field, count, row, full))

    return results
