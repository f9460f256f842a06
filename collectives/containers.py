"""Lists, tuples and dicts of tensors: taken apart, and put back.

    {"w": f32 (2, 3), "n": i64 (), "b": f32 (3,)}
        flatten    [b, n, w]      dicts by sorted key, so that ranks agree
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from collectives.adapters.leaf import Leaf
from collectives.arrays import as_leaf


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


def names_of(tree) -> list[str | None]:
    """The path of each tensor, in the order of `flatten`: keys and positions joined with dots.

    >>> names_of({"w": 1, "layers": [{"b": 2}]})
    ['layers.0.b', 'w']
    >>> names_of(1)
    [None]
    """
    if not isinstance(tree, (list, tuple, dict)):
        return [None]
    return [str(key) if name is None else f"{key}.{name}"
            for key in _keys(tree) for name in names_of(tree[key])]
