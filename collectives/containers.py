"""Lists, tuples and dicts of tensors: taken apart, packed into one message per dtype, put back.

    {"w": f32 (2, 3), "n": i64 (), "b": f32 (3,)}
        flatten    [b, n, w]                        dicts by sorted key, so that ranks agree
        pack       float32 |b b b|w w w w w w|      a Message per dtype, in order of appearance
                   int64   |n|                      alone: zero-copy

A message's buffers are 1-D, contiguous and of the carrier dtype.  After the reduction, `commit`
brings the target back into the user's memory.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from collectives.adapters.leaf import Commit, Leaf, nothing
from collectives.arrays import as_leaf, check_disjoint, overlap
from collectives.dtypes import carrier


@dataclass(slots=True)
class Message:
    """One contiguous reduction.

    source : the contributions;  target : where the result goes, the same object if in place.
    commit : call it once, when target is complete.
    """

    dtype: str
    source: np.ndarray
    target: np.ndarray
    commit: Commit


def flatten(tree) -> tuple[list, Callable[[Sequence], object]]:
    """The tensors of nested lists, tuples and dicts, and the function that puts new ones in place.

    Whatever is no container is one tensor.  Dicts are read in the order of their sorted keys if
    these can be sorted, else in their own.  `rebuild(values)` keeps types and the user's order; a
    container all of whose values are the old objects is returned itself, not a copy.

    >>> leaves, rebuild = flatten({"b": 2, "a": (0, 1)})
    >>> leaves, rebuild([5, 6, 7])
    ([0, 1, 2], {'b': 7, 'a': (5, 6)})
    """
    if not isinstance(tree, (list, tuple, dict)):
        return [tree], _only
    leaves: list = []
    node = _take_apart(tree, leaves)
    return leaves, lambda values: _put_back(node, iter(values))


def _only(values: Sequence):
    (value,) = values
    return value


@dataclass(slots=True)
class _Node:
    """A container as it was: later changes to it do not confuse `rebuild`."""

    tree: object
    keys: list
    old: list
    children: list  # a _Node, or None for a tensor


def _take_apart(tree, leaves: list) -> _Node | None:
    if not isinstance(tree, (list, tuple, dict)):
        leaves.append(tree)
        return None
    keys = _keys(tree)
    old = [tree[key] for key in keys]
    return _Node(tree, keys, old, [_take_apart(child, leaves) for child in old])


def _keys(tree) -> list:
    if not isinstance(tree, dict):
        return list(range(len(tree)))
    try:
        return sorted(tree)
    except TypeError:
        return list(tree)


def _put_back(node: _Node | None, values: Iterator):
    if node is None:
        return next(values)
    new = [_put_back(child, values) for child in node.children]
    if all(a is b for a, b in zip(node.old, new, strict=True)):
        return node.tree
    if isinstance(node.tree, dict):
        return _replaced(node.tree, dict(zip(node.keys, new, strict=True)))
    make = getattr(node.tree, "_make", type(node.tree))  # namedtuples have _make
    return make(new)


def _replaced(tree: dict, values: dict) -> dict:
    result = copy(tree)  # keeps the order of keys, the type, and a defaultdict's factory
    result.update(values)
    return result


def as_leaves(tree) -> tuple[list[Leaf], Callable[[Sequence], object]]:
    """`flatten`, with each tensor as a Leaf; an error says where in `tree` the tensor is."""
    tensors, rebuild = flatten(tree)
    if rebuild is _only:
        return [as_leaf(tree)], rebuild
    leaves = []
    for n, tensor in enumerate(tensors):
        try:
            leaves.append(as_leaf(tensor))
        except (TypeError, OverflowError) as error:
            where = list(_paths(tree, ""))[n]
            raise type(error)(f"at {where}: {error}") from error
    return leaves, rebuild


def _paths(tree, prefix: str) -> Iterator[str]:
    """Where each tensor is, in the order of `flatten`."""
    if not isinstance(tree, (list, tuple, dict)):
        yield prefix
        return
    for key in _keys(tree):
        yield from _paths(tree[key], f"{prefix}[{key!r}]")


def results(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Where an in-place verb puts its results: the leaf itself, or a new one if immutable."""
    return [leaf.empty() if leaf.immutable else leaf for leaf in leaves]


def in_place(leaves: Sequence[Leaf]) -> list[Message]:
    """Messages whose target is their source.

    Raises
    ------
    ValueError
        If a leaf cannot be written, or two share memory.
    """
    return out_of_place(leaves, leaves)


def out_of_place(leaves: Sequence[Leaf], outs: Sequence[Leaf]) -> list[Message]:
    """Messages from `leaves` to `outs`, of equal dtypes and sizes; pairs may be the same memory.

    Raises
    ------
    ValueError
        If an out cannot be written, or two share memory.
    """
    _check_outs(outs)
    return [_transfer(leaves[group[0]], outs[group[0]]) if len(group) == 1
            else _packed([leaves[i] for i in group], [outs[i] for i in group])
            for group in _by_dtype(leaves)]


def read_only(leaves: Sequence[Leaf]) -> list[Message]:
    """Messages that only contribute: target is empty and nothing of the user's is written."""
    messages = []
    for group in _by_dtype(leaves):
        parts = [leaves[i] for i in group]
        dtype = parts[0].dtype
        source = parts[0].read() if len(parts) == 1 else _gathered(parts)
        messages.append(Message(dtype, source, np.empty(0, carrier(dtype)), nothing))
    return messages


def write_only(outs: Sequence[Leaf]) -> list[Message]:
    """Messages that only receive: source is target, whose content is undefined.

    Raises
    ------
    ValueError
        If an out cannot be written, or two share memory.
    """
    _check_outs(outs)
    messages = []
    for group in _by_dtype(outs):
        parts = [outs[i] for i in group]
        if len(parts) == 1:
            buffer, commit = parts[0].target()
        else:
            buffer = np.empty(sum(part.size for part in parts), carrier(parts[0].dtype))
            commit = _scatter(parts, buffer)
        messages.append(Message(parts[0].dtype, buffer, buffer, commit))
    return messages


def _by_dtype(leaves: Sequence[Leaf]) -> list[list[int]]:
    """Indices of equal dtype, in order of first appearance."""
    if len(leaves) == 1:
        return [[0]]
    groups: dict[str, list[int]] = {}
    for i, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype, []).append(i)
    return list(groups.values())


def _transfer(leaf: Leaf, out: Leaf) -> Message:
    """A message of one leaf, zero-copy where memory allows."""
    if leaf is out or overlap(leaf, out) == "same":
        buffer, commit = out.inout()
        return Message(leaf.dtype, buffer, buffer, commit)
    target, commit = out.target()
    return Message(leaf.dtype, leaf.read(), target, commit)


def _packed(leaves: list[Leaf], outs: list[Leaf]) -> Message:
    """A message of several leaves, reduced in a buffer of ours."""
    buffer = _gathered(leaves)
    return Message(leaves[0].dtype, buffer, buffer, _scatter(outs, buffer))


def _slices(leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, slice]]:
    """Each leaf with its place in the packed buffer."""
    start = 0
    for leaf in leaves:
        yield leaf, slice(start, start + leaf.size)
        start += leaf.size


def _gathered(leaves: Sequence[Leaf]) -> np.ndarray:
    buffer = np.empty(sum(leaf.size for leaf in leaves), carrier(leaves[0].dtype))
    for leaf, place in _slices(leaves):
        leaf.load(buffer[place])
    return buffer


def _scatter(leaves: Sequence[Leaf], buffer: np.ndarray) -> Commit:
    def commit() -> None:
        for leaf, place in _slices(leaves):
            leaf.store(buffer[place])
    return commit


def _check_outs(outs: Sequence[Leaf]) -> None:
    if len(outs) > 1:  # one alone is checked when its buffer is made
        for out in outs:
            out.check_writable()
        check_disjoint(outs)
