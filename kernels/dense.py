"""Host kernels of codecs with one code per element, and of no codec: block by block.

A block is gone over more than once, while the first-level cache holds it:

    statistic    read v, reduce it to the scale              blocks only
    codes        read v again, write codes and residual
    result       FINAL: read the codes, write dst

v = a + decode(incoming) + residual is computed twice, by the same instructions, and never stored.
Loops go over one field of the bytes (see `dense_layout`) at a time: each reads and writes
contiguous arrays from index 0, so the compiler vectorises it.  dst may be a: FINAL writes it last,
and the others have a loop of their own for that.
"""

from collectives.kernels import dense_decode, dense_encode
from collectives.kernels.codec import Codec, Emit
from collectives.kernels.dense_parts import Parts, parts_of


def make(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str):
    """The Python function to compile; see `fused.fused_kernel`."""
    parts = parts_of(codec, adds, feedback, a, dst)
    if emit in (Emit.WIRE, Emit.FINAL):
        return _over_blocks(parts, dense_encode.make(codec, parts, emit is Emit.FINAL))
    return _over_blocks(parts, dense_decode.make(parts, emit))


def _over_blocks(parts: Parts, body):
    """A kernel that calls body(dst, a, incoming, residual, wire, count, row, divisor, seed, number)
    for each block: of `count` elements in `row` bytes, its arrays at these addresses.
    """
    block, nbytes, fields = parts.wire.block, parts.wire.nbytes, parts.wire.fields
    a_size, dst_size, acc_size = (size * block for size in parts.sizes)

    def kernel(dst, a, incoming, residual, wire, n, divisor, seed, parameter):
        for b in range((n + (block - 1)) // block):
            left = n - b * block
            count = left if left < block else block
            body(dst + b * dst_size, a + b * a_size, incoming + b * nbytes, residual + b * acc_size,
                 wire + b * nbytes, count, (count + (fields - 1)) // fields, divisor, seed, b)

    return kernel
