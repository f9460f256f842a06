"""Kernels without a wire to write: PARTIAL, VALUE and DECODE.  See `dense` for their shape."""

import numpy as np

from collectives.kernels.codec import Emit
from collectives.kernels.dense_parts import (
    Parts,
    decoded,
    inlined,
    quotient,
    remainder,
    scale_at,
)
from collectives.kernels.scalars import load, store


def make(parts: Parts, emit: Emit):
    """The body for `dense`: writes one block of dst."""
    to_dst, to_a = _loops({Emit.DECODE: _decode, Emit.PARTIAL: _partial, Emit.VALUE: _value}[emit](
        parts))
    fields, bits, header = parts.wire.fields, parts.wire.bits, parts.wire.header
    in_field, scale_of = parts.in_field, scale_at(parts.wire, parts.adds)
    a_size, dst_size, acc_size = parts.a_size, parts.dst_size, parts.acc_size
    in_place = parts.in_place

    @inlined
    def body(dst, a, incoming, residual, wire, count, row, full, divisor, seed, number):
        scale = scale_of(incoming)
        for field in range(fields):
            first, shift = field * row, np.uint32(field * bits)
            here = in_field(field, count, row, full)
            if in_place and dst == a:
                to_a(a + first * a_size, incoming + header, scale, shift,
                     residual + first * acc_size, here, divisor)
            else:
                to_dst(dst + first * dst_size, a + first * a_size, incoming + header, scale, shift,
                       residual + first * acc_size, here, divisor)

    return body


def _loops(element):
    """Two, since where arrays overlap the compiler's run-time test takes a slow loop."""
    @inlined
    def to_dst(dst, a, codes, scale, shift, residual, count, divisor):
        for j in range(count):
            element(dst, a, codes, scale, shift, residual, j, divisor)

    @inlined
    def to_a(a, codes, scale, shift, residual, count, divisor):
        for j in range(count):
            element(a, a, codes, scale, shift, residual, j, divisor)

    return to_dst, to_a


def _decode(parts: Parts):
    write = decoded(parts)
    return inlined(lambda dst, a, codes, scale, shift, residual, j, divisor: write(
        dst, codes, scale, shift, j))


def _partial(parts: Parts):
    value = parts.value
    return inlined(lambda dst, a, codes, scale, shift, residual, j, divisor: store(
        dst, j, value(a, codes, scale, shift, residual, j)))


def _value(parts: Parts):
    value, narrow, widen, feedback = parts.value, parts.narrow, parts.widen, parts.feedback
    acc, over, rest = parts.acc, quotient(parts.acc), remainder(parts.acc)
    infinity = parts.acc(np.inf)

    @inlined
    def element(dst, a, codes, scale, shift, residual, j, divisor):
        v = value(a, codes, scale, shift, residual, j)
        rounded = narrow(over(v, divisor))
        if feedback:
            lost = rest(v, widen(rounded), divisor)
            store(residual, j, lost if abs(v) < infinity else load(residual, j, acc))
        store(dst, j, rounded)

    return element
