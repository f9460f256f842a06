"""One module per algorithm, named after it; this file is the register.

An algorithm has a verb if its module has a generator of that name.  What is one chunk differs:
reduce_scatter and allgather always have `size` chunks, of which chunk c belongs to rank c; for the
other verbs the module says how many it wants.

    verb              generator              starts with        ends with the final value of
    allreduce         f(rank, size)          every chunk        every chunk on every rank
    reduce_scatter    f(rank, size)          every chunk        chunk r on rank r
    allgather         f(rank, size)          chunk r            every chunk on every rank
    broadcast         f(rank, size, root)    all, on the root   every chunk on every rank
    reduce            f(rank, size, root)    every chunk        every chunk on the root
"""

from types import ModuleType

from collectives.schedules import (
    binomial_tree,
    direct,
    double_binary_tree,
    halving_doubling,
    recursive_doubling,
    ring,
)
from collectives.step import Step

VERBS = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")
ROOTED = ("broadcast", "reduce")

_MODULES = {
    "ring": ring,
    "direct": direct,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "binomial_tree": binomial_tree,
    "double_binary_tree": double_binary_tree,
}


def algorithms(verb: str) -> tuple[str, ...]:
    """Names of the algorithms that have `verb`.

    >>> algorithms("allgather")
    ('ring', 'direct', 'recursive_doubling', 'halving_doubling', 'binomial_tree')
    """
    if verb not in VERBS:
        raise ValueError(f"unknown verb {verb!r}; there are {', '.join(VERBS)}")
    return tuple(name for name, module in _MODULES.items() if hasattr(module, verb))


def reencodes(verb: str, algorithm: str) -> bool:
    """True if ranks pass whole partial sums to and fro, so that a codec has no place in it.

    In a recursive doubling every rank would encode every partial sum again, and each of them
    differently from the rank that it exchanges with.
    """
    return (verb, algorithm) == ("allreduce", "recursive_doubling")


def generate(verb: str, algorithm: str, rank: int, size: int, root: int = 0) -> list[Step]:
    """The steps of one rank.  `root` matters to broadcast and reduce only.

    Raises
    ------
    ValueError
        If `algorithm` does not have `verb`, or size, rank or root is out of range.
    """
    module = _module(verb, algorithm)
    _check_size(size)
    for name, value in (("rank", rank), ("root", root)):
        if not 0 <= value < size:
            raise ValueError(f"{name} {value} is not in 0 .. {size - 1}")
    where = (rank, size, root) if verb in ROOTED else (rank, size)
    return list(getattr(module, verb)(*where))


def num_chunks(verb: str, algorithm: str, size: int) -> int:
    """Into how many chunks the schedule cuts the message."""
    module = _module(verb, algorithm)
    _check_size(size)
    return size if verb in ("reduce_scatter", "allgather") else module.num_chunks(verb, size)


def _module(verb: str, algorithm: str) -> ModuleType:
    known = algorithms(verb)
    if algorithm not in known:
        raise ValueError(f"{verb} has no algorithm {algorithm!r}; it has {', '.join(known)}")
    return _MODULES[algorithm]


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size {size} is not at least 1")
