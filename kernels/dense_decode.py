"""Kernels without a wire to write: PARTIAL, VALUE and DECODE.  See `dense` for their shape."""

import numpy as np

from collectives.kernels import floats
from collectives.kernels.codec import Emit
from collectives.kernels.dense_parts import Parts, in_field, inlined
from collectives.kernels.scalars import load, load_packed, store


def make(parts: Parts, emit: Emit):
    """The body for `dense`: writes one block of dst."""
    element = {Emit.DECODE: _decode, Emit.PARTIAL: _partial, Emit.VALUE: _value}[emit](parts)
    fields, bits, header = parts.wire.fields, parts.wire.bits, parts.wire.header
    a_size, dst_size, acc_size = parts.sizes
    acc, in_place, scaled = floats.STORED[parts.acc], parts.a == parts.dst, header and parts.adds

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, divisor, seed, number):
        scale = load_packed(incoming) if scaled else np.float32(0)
        codes, ratio = incoming + header, acc(divisor)
        for field in range(fields):
            first, shift = field * row, np.uint32(field * bits)
            out, mine = dst + first * dst_size, a + first * a_size
            kept = residual + first * acc_size
            # Where arrays overlap, the compiler's test at run time takes a loop without vectors.
            if in_place and dst == a:
                for j in range(in_field(field, count, row)):
                    element(mine, mine, codes, scale, shift, kept, j, ratio)
            else:
                for j in range(in_field(field, count, row)):
                    element(out, mine, codes, scale, shift, kept, j, ratio)

    return body


def _decode(parts: Parts):
    get, decode, acc = parts.get, parts.decode, floats.STORED[parts.acc]
    narrow = floats.narrower(parts.acc, parts.dst)
    return inlined(lambda dst, a, codes, scale, shift, residual, j, ratio: store(
        dst, j, narrow(acc(decode(get(codes, j, shift), scale)))))


def _partial(parts: Parts):
    value = parts.value
    return inlined(lambda dst, a, codes, scale, shift, residual, j, ratio: store(
        dst, j, value(a, codes, scale, shift, residual, j)))


def _value(parts: Parts):
    value, over, narrow = parts.value, floats.quotient(parts.acc), floats.narrower(
        parts.acc, parts.dst)
    widen, rest = floats.widener(parts.dst, parts.acc), floats.remainder(parts.acc)
    where_finite, acc = floats.where_finite(parts.acc), floats.STORED[parts.acc]

    def plain(dst, a, codes, scale, shift, residual, j, ratio):
        store(dst, j, narrow(over(value(a, codes, scale, shift, residual, j), ratio)))

    def with_residual(dst, a, codes, scale, shift, residual, j, ratio):
        v = value(a, codes, scale, shift, residual, j)
        rounded = narrow(over(v, ratio))
        store(residual, j, where_finite(v, rest(v, widen(rounded), ratio), load(residual, j, acc)))
        store(dst, j, rounded)

    return inlined(with_residual if parts.feedback else plain)
