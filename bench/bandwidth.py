"""Bandwidths as nccl-tests defines them (doc/PERFORMANCE.md), so numbers can be compared.

algbw = S / t.  busbw = algbw * factor(p), which a perfect algorithm keeps equal to the link
bandwidth whatever p is.  S is the size of the *whole* array in bytes; 1 GB = 1e9 bytes.

The whole array, for each collective (p ranks):

    allreduce, broadcast, reduce    what every rank passes in
    reduce_scatter                  what every rank passes in: p times what it gets back
    allgather                       what every rank gets back: p times what it passes in
    alltoall                        what every rank passes in, its own part included

In place and out of place have the same S.  The factors assume that all links are alike; across
slow and fast links busbw is a convention and not the speed of any wire.  One rank moves nothing:
its busbw is 0.
"""

BUSBW_FACTOR = {
    "allreduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "allgather": lambda p: (p - 1) / p,
    "alltoall": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0 if p > 1 else 0.0,
    "reduce": lambda p: 1.0 if p > 1 else 0.0,
}


def algbw_GBps(nbytes: int, seconds: float) -> float:
    """S / t.  With S the bytes of a compressed array on the wire: the wire's algbw."""
    return nbytes / seconds / 1e9


def busbw_GBps(collective: str, nbytes: int, seconds: float, size: int) -> float:
    """algbw times the collective's factor for `size` ranks."""
    return algbw_GBps(nbytes, seconds) * BUSBW_FACTOR[collective](size)
