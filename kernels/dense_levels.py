"""Uniform levels with one scale per block: shared by int8, int4 and ternary.

With codes of b bits and L = 2^(b-1) - 1:

    scale = max(max|x| / L, 2^-126)      so that 1 / scale is finite; at most FLT_MAX / L
    code = round(x / scale)              in [-L, L], a two's complement field of b bits
    decoded = code * scale

x / scale is computed as x * (1 / scale).  Rounding is to nearest, ties to even, by adding and
subtracting 1.5 * 2^23; or stochastic: up with the probability of the fraction, so that the
expected value is x.  A stochastic choice is a hash of (seed, block, element within the block), so
it depends on neither the order of computation nor the device.

A block with a value that is not finite has scale NaN and codes 0.

Error: scale / 2 (stochastic: scale), and the rounding of three float32 operations, at most
L scale 2^-22.

Sources: scaling by the block's absolute maximum, Dettmers, Lewis, Shleifer & Zettlemoyer, "8-bit
optimizers via block-wise quantization", arXiv:2110.02861; stochastic levels, Alistarh, Grubic,
Li, Tomioka & Vojnovic, "QSGD", NeurIPS 2017; the hash's mixer is `lowbias32` of C. Wellons'
hash-prospector.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from collectives.kernels.dense_layout import LARGEST, Blocks, check_rounding

MAGIC = np.float32(1.5 * 2**23)
SMALLEST_SCALE = np.float32(2.0**-126)
_ONE = np.float32(1)
_HALF, _UNIT = np.float32(0.5), np.float32(2.0**-23)
_U9, _U15, _U16 = np.uint32(9), np.uint32(15), np.uint32(16)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Levels(Blocks):
    """A codec of uniform levels; `seed` is that of stochastic rounding, 64 bits."""

    statistic: ClassVar[str] = "peak"

    stochastic: bool = False
    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        check_rounding(self)

    @property
    def levels(self) -> int:
        """L: the largest code."""
        return 2 ** (self.bits - 1) - 1

    @property
    def layout(self) -> "Levels":
        return replace(self, seed=0) if self.seed else self

    def error_bound(self, x) -> np.ndarray:
        """Of each element of x, float64; see the module docstring."""
        top = float(self.largest_scale)
        scale = np.clip(self.in_blocks(x, np.max) / self.levels, float(SMALLEST_SCALE), top)
        steps = (1.0 if self.stochastic else 0.5) + self.levels * 2.0**-22
        return scale * steps + np.maximum(np.abs(np.asarray(x, np.float64)) - LARGEST, 0)

    @property
    def largest_scale(self) -> np.float32:
        """The largest float32 whose product with L is finite."""
        scale = np.float32(LARGEST / self.levels)
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.float32(self.levels) * scale)
        return scale if finite else np.nextafter(scale, np.float32(0))

    def cores(self, jit: Callable):
        """(scale, inverse, encode, decode), compiled by `jit`; all numbers float32, fields uint32.

        scale(peak);  inverse(scale);  encode(x, inverse, draw) -> field;  decode(field, scale)
        `draw` : uint32, random bits if stochastic
        """
        levels, largest = np.float32(self.levels), self.largest_scale
        mask, sign = np.int32(2**self.bits - 1), np.int32(2 ** (self.bits - 1))
        code_of, value_of = self.codes(jit)

        @jit
        def scale(peak):
            scale = np.float32(peak / levels)
            scale = scale if scale > SMALLEST_SCALE else SMALLEST_SCALE
            return scale if scale < largest else largest

        @jit
        def inverse(scale):
            return np.float32(_ONE / scale)

        @jit
        def encode(x, inverse, draw):
            return np.uint32(np.int32(code_of(x, inverse, draw)) & mask)

        @jit
        def decode(field, scale):
            return value_of(np.float32((np.int32(field) ^ sign) - sign), scale)

        return scale, inverse, encode, decode

    def codes(self, jit: Callable):
        """(code, value), compiled by `jit`: what `encode` and `decode` do beside the fields.

        code(x, inverse, draw), value(code, scale) : float32, codes being whole numbers
        """
        levels = np.float32(self.levels)

        def nearest(x, inverse, draw):
            return (x * inverse + MAGIC) - MAGIC

        def stochastic(x, inverse, draw):
            value = x * inverse
            nearest = (value + MAGIC) - MAGIC
            floor = nearest - _ONE if nearest > value else nearest
            # 23 random bits and a half: strictly between 0 and 1, exact in float32
            threshold = (np.float32(np.int32(draw >> _U9)) + _HALF) * _UNIT
            code = floor + _ONE if threshold < value - floor else floor
            code = code if code < levels else levels
            return code if code > -levels else -levels

        value = jit(lambda code, scale: code * scale)
        return jit(stochastic if self.stochastic else nearest), value


def draws(jit: Callable):
    """(key, draw), compiled by `jit`: 32 random bits for each element of each block.

    key(seed, block, which) : seed and block int64, which 0 or 1 -> uint32, once per block:
        low and high half of the seed, then of the block's number, are mixed into which + 1
    draw(first, second, element) : the two keys and the index within the block -> uint32
    """
    @jit
    def mix(x):
        x = np.uint32(x ^ (x >> _U16))
        x = np.uint32((np.uint64(x) * np.uint64(0x7FEB352D)) & _LOW)
        x = np.uint32(x ^ (x >> _U15))
        x = np.uint32((np.uint64(x) * np.uint64(0x846CA68B)) & _LOW)
        return np.uint32(x ^ (x >> _U16))

    @jit
    def key(seed, block, which):
        x = np.uint32(which + 1)
        for k in range(4):
            word = ((seed if k < 2 else block) >> (32 * (k & 1))) & 0xFFFFFFFF
            x = mix(np.uint32(x ^ np.uint32(word)))
        return x

    @jit
    def draw(first, second, element):
        return mix(np.uint32(mix(np.uint32(first ^ np.uint32(element))) ^ second))

    return key, draw
