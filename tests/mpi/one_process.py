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


def totals(codec, rows, residuals):
    """What owners have before they encode, (count,); rows and residuals : (SIZE, count)."""
    sums = np.empty_like(rows[0])
    for owner, chunk in enumerate(chunks(codec, sums.size)):
        sums[chunk] = rows[owner][chunk]
        wire = np.empty(codec.wire_nbytes(sums[chunk].size), np.uint8)
        for q in ((owner - t) % SIZE for t in range(1, SIZE)):
            codec.encode(rows[q][chunk], residuals[q][chunk], wire)
            codec.decode_add(wire, sums[chunk])
    return sums


def direct(codec, rows, residuals, op="sum"):
    """The result of an allreduce on all ranks; renews the residuals of all."""
    divisor = np.float32(SIZE if op == "mean" else 1)
    sums = totals(codec, rows, residuals)
    result = np.empty_like(sums)
    for owner, chunk in enumerate(chunks(codec, sums.size)):
        v = sums[chunk] + residuals[owner][chunk]
        result[chunk] = v / divisor
        if SIZE > 1:
            wire = np.empty(codec.wire_nbytes(v.size), np.uint8)
            codec.encode(result[chunk], None, wire)
            codec.decode(wire, result[chunk])
        residuals[owner][chunk] = v - divisor * result[chunk]
    return result


def normal(*shape, seed):
    """The same on all ranks."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def reduced(x, name, residual=None, op="sum", **how):
    """The allreduce of a copy of x."""
    return coll.allreduce(x.copy(), op, compression=name, residual=residual, **how)
