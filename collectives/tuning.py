"""Which algorithm `auto` means, by verb, number of ranks and bytes: a table measured once.

TO BE MEASURED.
"""

from collectives import schedules

DEFAULT_SEGMENT = 1 << 20  # bytes per message


def choose(verb: str, nbytes: int, size: int) -> str:
    """The algorithm for a whole array of `nbytes` bytes on `size` ranks."""
    small = {"allreduce": "recursive_doubling", "broadcast": "binomial_tree",
             "reduce": "binomial_tree", "reduce_scatter": "direct", "allgather": "direct"}
    large = {"allreduce": "ring", "broadcast": "ring", "reduce": "ring",
             "reduce_scatter": "ring", "allgather": "ring"}
    name = (small if nbytes <= 1 << 16 else large)[verb]
    assert name in schedules.algorithms(verb), (verb, name)
    return name
