"""One rank's part of a call with error feedback, and codecs simple enough to reason about.

No message is sent: `call` plays the kernels of one rank whose wire nobody adds to.
"""

from dataclasses import dataclass

import numpy as np

from collectives.kernels.codec import Codec


@dataclass(frozen=True)
class Largest(Codec):
    """Sparse: keeps the `keep` largest elements."""

    name = "largest"
    concatenates = False
    keep: int = 3

    def sent(self, v):
        kept = np.zeros(v.size, bool)
        kept[np.argsort(-np.abs(v), kind="stable")[:self.keep]] = True
        return np.where(kept.reshape(v.shape), v, np.zeros_like(v))


@dataclass(frozen=True)
class Whole(Codec):
    """Dense: rounds to multiples of 1/4."""

    name = "whole"

    def sent(self, v):
        return np.round(4 * v) / 4


SPARSE, DENSE = Largest(), Whole()


def call(feedback, name, gradient, codec, dtype="float32"):
    """One rank's part of a call on one tensor: what it sent."""
    entry = feedback.begin(name, dtype, gradient.shape, codec)
    v = entry.source(gradient.reshape(-1))
    v = gradient.copy() if v is None else v.reshape(gradient.shape).copy()
    if not entry.active:
        assert entry.residual is None
    else:
        v += entry.residual
        entry.residual[...] = v - codec.sent(v)
        v = codec.sent(v)
    entry.end()
    return v


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
