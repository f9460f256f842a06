"""Top-k: the k = density * n largest magnitudes, exactly, as pairs of value and index.

    float32 values [k]     in the order of their indices
    uint32 indices [k]     ascending

k = max(1, floor(density * n)).  Magnitudes are compared as float32, NaN > Inf > numbers; of equal
ones the lowest indices are taken.  Bits per element: 64 density.

Error: an element that is sent is exact (a float64: rounded to float32); any other is at most the
k-th largest magnitude, and decodes to 0.  All of that stays in the residual.  Without one, training
does not converge in general; with one, it does at the rate of SGD.

Selection is by radix, on the bit patterns of magnitudes: see `kernels.select`.

Sources: Aji & Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021); Lin et al., "Deep gradient compression", ICLR 2018; Stich, Cordonnier & Jaggi,
"Sparsified SGD with memory", NeurIPS 2018.
"""

import math
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from collectives.kernels.codec import Codec
from collectives.kernels.codecs.pairs import PAIR_NBYTES, check_count, rounding_bound


def cores(jit) -> SimpleNamespace:
    """The scalar functions, compiled by `jit`."""

    @jit
    def kept(n, density):
        # 0.29 is a little less than 29/100 and 0.29 * 100 less than 29: two roundings, undone.
        k = np.int64(math.floor(density * n * (1 + 2.0**-51)))
        k = k if k > 1 else 1
        return k if k < n else n

    return SimpleNamespace(kept=kept)


_kept = cores(lambda function: function).kept


@dataclass(frozen=True)
class TopK(Codec):
    """Send the share `density` of the elements, those of largest magnitude.

    Examples
    --------
    >>> TopK(0.01).kept(100_000), TopK(0.01).wire_nbytes(100_000)
    (1000, 8000)
    """

    density: float

    name: ClassVar[str] = "topk"
    driver: ClassVar[str] = "collectives.kernels.sparse"
    needs_work: ClassVar[bool] = True
    concatenates: ClassVar[bool] = False

    def __post_init__(self):
        density = self.density
        if isinstance(density, bool) or not isinstance(density, Real) or not 0 < density <= 1:
            raise ValueError(f"topk: density={density!r}: expected a number in (0, 1]")
        object.__setattr__(self, "density", float(density))

    @property
    def parameter(self) -> float:
        return self.density

    def kept(self, n: int) -> int:
        """How many of n elements are sent."""
        return int(_kept(n, self.density))

    def wire_nbytes(self, n: int) -> int:
        check_count(self.name, n)
        return PAIR_NBYTES * self.kept(n)

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """Most that decode(encode(x)) is off, per finite element.  float64, shape of x."""
        size = np.abs(x.astype(np.float64))
        if size.size == 0:
            return size
        ordered = np.where(np.isnan(size), np.inf, size).ravel()
        cut = size.size - self.kept(size.size)
        return np.minimum(size, np.partition(ordered, cut)[cut]) + rounding_bound(x)
