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
the ring's neighbours for long ones, since p-1 messages at once congest a switch.

On one host that table is for threads other than the main one and for systems where ranks cannot
share memory.  Else short calls are `shared`: each value is copied into shared memory, and out of
it.  Long messages of the schedules are read straight from the sender's memory: one copy fewer, by
a system call that costs as much as some 100 KB of copying.  Time of MPI's own collective over that
of each (float32, out of cache, 2 / 4 / 8 ranks on 2 cores, MPICH 5.0):

    allreduce       shared               direct
    512 K           1.22 / 1.76 / 1.75   0.84 / 1.02 / 1.07
    2 M             1.36 / 1.88 / 2.14   1.14 / 1.49 / 1.28
    8 M             1.61 / 1.09 / 1.56   1.35 / 1.24 / 1.28
    32 M            1.58 / 2.41 / 2.95   2.50 / 3.17 / 3.15

For seconds at a time copies between the cores of that machine take twice as long; then `shared`
falls behind from 2 MB on (0.8 and 1.1 at 2 ranks).  MPI's own collective (`native`) has no place in
the table: called in a way that Ctrl-C and stall reports survive it is slower.
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


# Up to here `shared` was the fastest on one host; broadcast and reduce: always.
_SHARED_NBYTES = {"allreduce": 4 << 20, "reduce_scatter": 4 << 20, "allgather": 4 << 20}


def is_for_shared_memory(verb: str, nbytes: int) -> bool:
    """Whether `shared`, where ranks are all on one host, is faster than the schedules."""
    return nbytes <= _SHARED_NBYTES.get(verb, nbytes)


def choose(verb: str, nbytes: int, one_host: bool) -> str:
    """The algorithm for a whole array of `nbytes` bytes."""
    short, middle, long = (_ONE_HOST if one_host else _HOSTS)[verb]
    return short if nbytes <= _SHORT else middle if nbytes <= _LONG else long
