"""What each collective is given and has to return, and which of its bytes are its size.

p ranks; the whole array has n elements, a rank's chunk k = n / p.  The size S is that of n
elements, as in nccl-tests (bandwidth.py):

    collective        send    recv    of recv is checked              in place
    allreduce         n       n       the reduction                   or not
    reduce_scatter    n       k       this rank's chunk of it         no
    allgather         k       n       everyone's, in order of ranks   no
    broadcast         n               the root's                      always
    reduce            n       n       the reduction on the root;      or not
                                      elsewhere, that it is as before

Rank r puts (r + 1)(i + 1) mod m into element i (m prime), so the ranks differ from each other, an
element differs from its neighbours, and chunks that got swapped show, because no chunk length is
a multiple of m in practice.  m is small enough for the sum over all ranks to be an exact integer
of the dtype: any order of additions gives the same bits.
"""

from dataclasses import dataclass

import numpy as np

ROOT = 0
POISON = 0xAA  # every byte of what has not been written
PRIMES = (251, 127, 61, 31, 13, 7, 5, 3)
REDUCE = {"sum": np.sum, "mean": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
PLACES = {"allreduce": (False, True), "reduce_scatter": (False,), "allgather": (False,),
          "broadcast": (True,), "reduce": (False, True)}  # in place?
CHUNKED = ("reduce_scatter", "allgather")
REDUCING = ("allreduce", "reduce_scatter", "reduce")


@dataclass(frozen=True)
class Exchange:
    """What one rank passes to a collective and must have afterwards.

    given : array, shape (elements of send,)
    wanted : array, shape (elements of recv,)
    tolerance : relative error of a right answer
    """

    given: np.ndarray
    wanted: np.ndarray
    in_place: bool
    tolerance: float = 0.0


def whole(collective: str, count: int, size: int) -> int:
    """The elements of the whole array nearest below `count` that all ranks can share equally."""
    return max(count // size, 1) * size if collective in CHUNKED else count


def exchange(collective: str, op: str, dtype: np.dtype, rank: int, size: int, count: int,
             in_place: bool) -> Exchange:
    """This rank's part; `count` elements in the whole array."""
    def part(of: int, n: int) -> np.ndarray:
        return np.resize(inputs(op, dtype, size)[of], n).astype(dtype)

    def reduction() -> np.ndarray:
        return np.resize(expected(op, dtype, size), count)

    chunk = count // size
    if collective == "allgather":
        return Exchange(part(rank, chunk), np.concatenate([part(r, chunk) for r in range(size)]),
                        in_place)
    if collective == "broadcast":
        return Exchange(part(rank, count), part(ROOT, count), in_place)
    given, near = part(rank, count), tolerance(op, dtype)
    if collective == "reduce_scatter":
        return Exchange(given, reduction()[rank * chunk:(rank + 1) * chunk], in_place, near)
    if collective == "reduce" and rank != ROOT:
        return Exchange(given, given if in_place else poison(count, dtype), in_place)
    return Exchange(given, reduction(), in_place, near)


def poison(count: int, dtype: np.dtype) -> np.ndarray:
    """What a buffer holds that nothing was written to."""
    return np.full(count * dtype.itemsize, POISON, np.uint8).view(dtype)


def _finfo(dtype: np.dtype):
    if dtype.kind in "fc":
        return np.finfo(dtype)
    import ml_dtypes  # numpy's finfo does not know bfloat16
    return ml_dtypes.finfo(dtype)


def modulus(dtype: np.dtype, size: int) -> int:
    """The largest prime of ours with which the sum over `size` ranks is exact in `dtype`."""
    exact = np.iinfo(dtype).max if dtype.kind in "iu" else 2 ** (_finfo(dtype).nmant + 1)
    for m in PRIMES:
        if size * (m - 1) <= exact:
            return m
    raise ValueError(f"{dtype} cannot hold the sum of {size} ranks exactly; use a wider dtype")


def inputs(op: str, dtype: np.dtype, size: int) -> np.ndarray:
    """One period of every rank's input: int64, shape (size, m)."""
    m = modulus(dtype, size)
    values = np.outer(np.arange(1, size + 1), np.arange(1, m + 1)) % m
    # A product stays small if few factors are not 1: in each element, one rank in m has a 2.
    return 1 + (values == 1) if op == "prod" else values


def expected(op: str, dtype: np.dtype, size: int) -> np.ndarray:
    """One period of the reduction: `dtype`, shape (m,)."""
    total = REDUCE[op](inputs(op, dtype, size), axis=0)
    if op == "mean":
        total = total // size if dtype.kind in "iu" else total / size
    return total.astype(dtype)


def tolerance(op: str, dtype: np.dtype) -> float:
    """Relative error of a right answer: 0, but for the one division in a mean.

    total / p and total * (1 / p) are both right.  The first is off by half a unit in the last
    place, the second by twice that, and an ulp is at most eps: 1.5 eps between them, 2 to be safe.
    """
    return 2 * float(_finfo(dtype).eps) if op == "mean" and dtype.kind not in "iu" else 0.0
