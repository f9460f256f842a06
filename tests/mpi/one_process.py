"""A compressed allreduce as one process plays it for all ranks, with the codecs alone.

Algorithm "direct", to the last bit: each rank encodes each chunk once, for its owner; the owner
adds to its own values those of rank owner-1, owner-2, ... (mod p), encodes the sum, and takes what
that decodes to like everybody else.
"""

import numpy as np

import collectives as coll
from tests.mpi.reference import SIZE


def chunks(codec, count):
    """The slice of each owner: cut evenly in units of the codec's `align`."""
    units = -(-count // codec.align)
    ends = np.cumsum([units // SIZE + (r < units % SIZE) for r in range(SIZE)]) * codec.align
    ends = np.minimum(ends, count).tolist()
    return list(map(slice, [0, *ends], ends))


def total(codec, owner, rows, residuals):
    """The sum that the owner of a chunk has before it encodes; renews the others' residuals.

    rows, residuals : (SIZE, n), what all ranks have of this chunk
    """
    sum_, wire = rows[owner].copy(), np.empty(codec.wire_nbytes(rows[owner].size), np.uint8)
    for q in ((owner - t) % SIZE for t in range(1, SIZE)):
        codec.encode(rows[q], residuals[q], wire)
        codec.decode_add(wire, sum_)
    return sum_


def reduced_chunk(codec, owner, rows, residuals, op):
    """The owner's chunk of the result, on all ranks; renews the residuals of all."""
    divisor = np.float32(SIZE if op == "mean" else 1)
    v = total(codec, owner, rows, residuals) + residuals[owner]
    result = v / divisor
    if SIZE > 1:
        wire = np.empty(codec.wire_nbytes(v.size), np.uint8)
        codec.encode(result, None, wire)
        codec.decode(wire, result)
    residuals[owner] = v - divisor * result
    return result


def direct(codec, rows, residuals, op="sum"):
    """The result, on all ranks; renews the residuals of all.  rows, residuals : (SIZE, count)."""
    return np.concatenate([reduced_chunk(codec, owner, rows[:, chunk], residuals[:, chunk], op)
                           for owner, chunk in enumerate(chunks(codec, rows[0].size))])


def normal(*shape, seed):
    """The same on all ranks."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def reduced(x, name, residual=None, op="sum", **how):
    """The allreduce of a copy of x."""
    return coll.allreduce(x.copy(), op, compression=name, residual=residual, **how)
