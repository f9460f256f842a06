"""Which algorithm `auto` means: a table by verb and bytes, until there is a tuner.

On one host the table was measured (allreduce, float32 sum, 2, 4 and 8 ranks on 2 cores of an AMD
EPYC, MPICH 5.0), every algorithm against every other in one loop; time over that of the best:

    bytes    2 ranks                  4 ranks                  8 ranks
             tree   direct   ring     tree   direct   ring     tree   direct   ring
    8        1.00    1.07    1.18     1.00    1.23    1.44     1.00    1.26    1.78
    4 K      1.00    1.06    1.16     1.00    1.18    1.47     1.00    1.32    1.83
    32 K     1.52    1.00    1.07     1.29    1.11    1.30     1.02    1.01    1.32
    512 K    1.41    1.00    1.01     1.18    1.05    1.16     1.08    1.00    1.18
    2 M      1.44    1.00    1.00     1.32    1.02    1.03     1.50    1.00    1.14
    16 M     1.21    1.01    1.02     1.26    1.02    1.05     1.47    1.00    1.18

The other verbs follow by analogy, and so does what crosses hosts: few rounds for short messages,
the ring's neighbours for long ones, since p-1 messages at once congest a switch.  MPI's own
collective (`native`) was slower than ours from 16 KB on; below, where a call costs 15 us here and
MPI_Allreduce 4 to 8 us, calling it in a way that Ctrl-C and stall reports survive cost more than
it gained, so the table does not contain it.
"""

DEFAULT_SEGMENT = 1 << 20  # bytes per message, uncompressed

# With a codec: each value is encoded once on its way to the chunk's owner and once by the owner,
# so that errors do not grow with the number of ranks; along a ring or tree they add up hop by hop.
CODED = "direct"

_SHORT = 8 << 10
_LONG = 512 << 10

# verb: (short, middle, long), on one host and across hosts
_ONE_HOST = {
    "allreduce": ("binomial_tree", "direct", "direct"),
    "reduce_scatter": ("direct", "direct", "direct"),
    "allgather": ("direct", "direct", "direct"),
    "broadcast": ("binomial_tree", "direct", "direct"),
    "reduce": ("binomial_tree", "direct", "direct"),
}
_HOSTS = {
    "allreduce": ("recursive_doubling", "halving_doubling", "ring"),
    "reduce_scatter": ("halving_doubling", "halving_doubling", "ring"),
    "allgather": ("recursive_doubling", "recursive_doubling", "ring"),
    "broadcast": ("binomial_tree", "halving_doubling", "ring"),
    "reduce": ("binomial_tree", "halving_doubling", "ring"),
}


def choose(verb: str, nbytes: int, one_host: bool) -> str:
    """The algorithm for a whole array of `nbytes` bytes."""
    short, middle, long = (_ONE_HOST if one_host else _HOSTS)[verb]
    return short if nbytes <= _SHORT else middle if nbytes <= _LONG else long
