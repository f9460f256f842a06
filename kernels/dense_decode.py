"""Kernels without a wire to write: PARTIAL, VALUE and DECODE.  See `dense` for their shape."""

import numpy as np

from collectives.kernels import floats
from collectives.kernels.codec import Emit
from collectives.kernels.dense_parts import Parts, in_field, inlined
from collectives.kernels.scalars import load, load_packed, store


def make(parts: Parts, emit: Emit):
    """The kernel that writes dst."""
    element = {Emit.DECODE: _decode, Emit.PARTIAL: _partial, Emit.VALUE: _value}[emit](parts)
    block, nbytes, header, bits, fields, _ = parts.wire
    a_size, dst_size, acc_size = parts.sizes
    acc, in_place, scaled = floats.STORED[parts.acc], parts.a == parts.dst, header and parts.adds

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        ratio, in_a = acc(divisor), in_place and dst == a
        for b in range((n + (block - 1)) // block):
            count = n - b * block if n - b * block < block else block
            row = (count + (fields - 1)) // fields
            scale = load_packed(incoming + b * nbytes) if scaled else np.float32(0)
            codes = incoming + b * nbytes + header
            for field in range(fields):
                first, shift = b * block + field * row, np.uint32(field * bits)
                out, mine = dst + first * dst_size, a + first * a_size
                kept, here = residual + first * acc_size, in_field(field, count, row)
                # Where arrays overlap, the compiler's test at run time takes a loop without
                # vectors; in place they do, so that has a loop with one address for both.
                if in_a:
                    for j in range(here):
                        element(mine, mine, codes, scale, shift, kept, j, ratio)
                else:
                    for j in range(here):
                        element(out, mine, codes, scale, shift, kept, j, ratio)

    return kernel


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
    value, over = parts.value, floats.quotient(parts.acc)
    narrow = floats.narrower(parts.acc, parts.dst)
    left, acc = floats.leftover(parts.acc, parts.dst, True), floats.STORED[parts.acc]

    def plain(dst, a, codes, scale, shift, residual, j, ratio):
        store(dst, j, narrow(over(value(a, codes, scale, shift, residual, j), ratio)))

    def with_residual(dst, a, codes, scale, shift, residual, j, ratio):
        v = value(a, codes, scale, shift, residual, j)
        store(residual, j, left(v, over(v, ratio), ratio, load(residual, j, acc)))
        store(dst, j, narrow(over(v, ratio)))

    return inlined(with_residual if parts.feedback else plain)
