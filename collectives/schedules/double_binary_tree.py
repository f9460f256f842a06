"""Two binary trees, each carrying half of the message, so that no rank's link is idle.

In one binary tree the leaves, half of the ranks, forward nothing.  Here chunk 0 travels in one
tree and chunk 1 in another, in which the inner places of the first are leaves.  The first tree is
in-order: a place's level is the number of its trailing zero bits, so odd places are leaves.  The
second is its mirror image over an even number of places, which turns odd into even; a last, odd
place stays where it is, and is a leaf in both.

    places 1 .. 6, tree 0:           tree 1 (k -> 7-k):

              4                              3
          .---+---.                      .---+---.
          2       6                      1       5
        .-+-.   .-'                      '-.   .-+-.
        1   3   5                          2   4   6

allreduce puts rank r at place r+1.  broadcast and reduce put the root at place 0, outside of both
trees and above their tops, and the others at 1 .. p-1 from the root's successor on.

With S bytes per rank cut into 2 chunks, at most:

    collective    rounds              bytes sent per rank    reduced bytes per rank
    broadcast     ceil(log2 p)          S                      0
    reduce        ceil(log2 p)          S                      S
    allreduce     2 floor(log2 p)      2S                      S

Pipelined, allreduce keeps up with the ring in bytes, and its rounds grow only as log p.  An inner
place combines its own value with that of its left, then of its right child (in tree 1: mirrored).

Source: Sanders, Speck & Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009.
"""

from collections.abc import Iterator
from itertools import chain

from collectives.schedules.addressing import on
from collectives.step import Op, Step

TREES = (0, 1)  # tree t carries chunk t


def num_chunks(verb: str, size: int) -> int:
    """One per tree."""
    return len(TREES)


def broadcast(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """The root feeds the tops of both trees."""
    place, places = (rank - root) % size, size - 1
    return on(_down(place, places), lambda q: (q + root) % size)


def reduce(rank: int, size: int, root: int = 0) -> Iterator[Step]:
    """The tops of both trees feed the root."""
    place, places = (rank - root) % size, size - 1
    return on(_up(place, places), lambda q: (q + root) % size)


def allreduce(rank: int, size: int) -> Iterator[Step]:
    """Up both trees and down again; there is no rank at place 0."""
    steps = chain(_up(rank + 1, size), _down(rank + 1, size))
    return on((s for s in steps if s.peer != 0), lambda place: place - 1)


def neighbours(tree: int, place: int, places: int) -> tuple[int, list[int]]:
    """Parent (0 for the top of the tree) and children of `place`, 1 .. places, or of place 0."""
    if tree == 0:
        return _parent(place, places), _children(place, places)
    parent, children = neighbours(0, _mirror(place, places), places)
    return _mirror(parent, places), [_mirror(child, places) for child in children]


# A leaf's send waits for nothing, so it goes first on the way up; a leaf's receive is waited for
# by nobody, so it comes last on the way down.  Hence the two trees never wait for each other.

def _up(place: int, places: int) -> Iterator[Step]:
    for tree in _leaf_first(place, places):
        parent, children = neighbours(tree, place, places)
        for child in children:
            yield Step(Op.RECV_REDUCE, child, tree)
        if place:
            yield Step(Op.SEND, parent, tree)


def _down(place: int, places: int) -> Iterator[Step]:
    for tree in reversed(_leaf_first(place, places)):
        parent, children = neighbours(tree, place, places)
        if place:
            yield Step(Op.RECV, parent, tree)
        for child in children:
            yield Step(Op.SEND, child, tree)


def _leaf_first(place: int, places: int) -> list[int]:
    return sorted(TREES, key=lambda tree: len(neighbours(tree, place, places)[1]))


def _parent(place: int, places: int) -> int:
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    return above if above <= places else place ^ bit


def _children(place: int, places: int) -> list[int]:
    if place == 0:
        return [1 << (places.bit_length() - 1)] if places else []
    half = (place & -place) >> 1
    left = [place - half] if half else []
    while place + half > places:
        half >>= 1
    return left + ([place + half] if half else [])


def _mirror(place: int, places: int) -> int:
    even = places - places % 2
    return even + 1 - place if 0 < place <= even else place
