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
from collectives.kernels.dense_parts import parts_of


def make(codec: Codec | None, emit: Emit, adds: bool, feedback: bool, a: str, dst: str):
    """The Python function to compile; see `fused.fused_kernel`."""
    parts = parts_of(codec, adds, feedback, a, dst)
    if emit in (Emit.WIRE, Emit.FINAL):
        return dense_encode.make(codec, parts, emit is Emit.FINAL)
    return dense_decode.make(parts, emit)
