"""Tensors packed into messages: one per dtype and codec.

    [b f32 (3,), n i64 (), w f32 (2, 3)]
        float32 |b b b|w w w w w w|      a Message per kind, in order of appearance
        int64   |n|                      alone: zero-copy

A message's buffers are 1-D, contiguous and of the carrier dtype.  After the reduction, `commit`
brings the target back into the user's memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collectives.adapters.leaf import Commit, Leaf, nothing
from collectives.arrays import check_disjoint, overlap
from collectives.dtypes import carrier
from collectives.kernels.codec import Codec


@dataclass(slots=True)
class Treatment:
    """How one tensor is sent.

    codec : what its messages are encoded with, or None
    residual : its accumulators, 1-D, which the call reads and renews, or None
    source : what is contributed instead of the tensor, 1-D, of the carrier dtype, or None
    commit : call it once, when the call is complete
    """

    codec: Codec | None = None
    residual: np.ndarray | None = None
    source: np.ndarray | None = None
    commit: Commit = nothing


@dataclass(slots=True)
class Message:
    """One contiguous reduction.

    source : the contributions;  target : where the result goes, the same object if in place
    commit : call it once, when target is complete
    codec, residual : as in `Treatment`
    """

    dtype: str
    source: np.ndarray
    target: np.ndarray
    commit: Commit
    codec: Codec | None = None
    residual: np.ndarray | None = None


@dataclass(slots=True)
class _Item:
    """A tensor, where its result goes (None: nowhere here), and how it is sent."""

    leaf: Leaf
    out: Leaf | None
    how: Treatment

    @property
    def kind(self) -> tuple:
        """What tensors of one message have in common."""
        return self.leaf.dtype, self.how.codec, self.how.residual is None


def results(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Where an in-place verb puts its results: the leaf itself, or a new one if immutable."""
    return [leaf.empty() if leaf.immutable else leaf for leaf in leaves]


def exchanged(leaves: Sequence[Leaf], outs: Sequence[Leaf],
              how: Sequence[Treatment] | None = None) -> list[Message]:
    """Messages from `leaves` to `outs`, of equal dtypes and sizes; pairs may be the same memory.

    Raises
    ------
    ValueError
        If an out cannot be written, or two share memory.
    """
    _check_outs(outs)
    return [_alone(*group) if len(group) == 1 else _packed(group)
            for group in _groups(leaves, outs, how)]


def read_only(leaves: Sequence[Leaf], how: Sequence[Treatment] | None = None) -> list[Message]:
    """Messages that only contribute: target is empty and nothing of the user's is written."""
    messages = []
    for group in _groups(leaves, [None] * len(leaves), how):
        source = _source(group[0]) if len(group) == 1 else _gathered(group)
        messages.append(_message(group, source, np.empty(0, source.dtype), nothing))
    return messages


def write_only(outs: Sequence[Leaf], how: Sequence[Treatment] | None = None) -> list[Message]:
    """Messages that only receive: source is target, whose content is undefined.

    Raises
    ------
    ValueError
        If an out cannot be written, or two share memory.
    """
    _check_outs(outs)
    messages = []
    for group in _groups(outs, outs, how):
        if len(group) == 1:
            buffer, commit = group[0].out.target()
        else:
            buffer = np.empty(sum(item.leaf.size for item in group), carrier(group[0].leaf.dtype))
            commit = _scatter(group, buffer)
        messages.append(_message(group, buffer, buffer, commit))
    return messages


def _groups(leaves, outs, how) -> list[list[_Item]]:
    """Tensors of one kind, in order of first appearance."""
    how = how or [Treatment()] * len(leaves)
    groups: dict[tuple, list[_Item]] = {}
    for item in map(_Item, leaves, outs, how):
        groups.setdefault(item.kind, []).append(item)
    return list(groups.values())


def _alone(item: _Item) -> Message:
    """A message of one tensor, zero-copy where memory allows."""
    leaf, out = item.leaf, item.out
    if item.how.source is None and (leaf is out or overlap(leaf, out) == "same"):
        source, commit = out.inout()
        target = source
    else:
        target, commit = out.target()
        source = _source(item)
    return _message([item], source, target, commit)


def _source(item: _Item) -> np.ndarray:
    return item.leaf.read() if item.how.source is None else item.how.source


def _packed(group: list[_Item]) -> Message:
    """A message of several tensors, reduced in a buffer of ours."""
    buffer = _gathered(group)
    return _message(group, buffer, buffer, _scatter(group, buffer))


def _message(group: list[_Item], source, target, commit: Commit) -> Message:
    """With the group's codec and residuals."""
    residual, renew = group[0].how.residual, nothing
    if residual is not None and len(group) > 1:
        residual = np.concatenate([item.how.residual for item in group])

        def renew():
            for item, place in _slices(group):
                item.how.residual[:] = residual[place]

    def finish():
        commit()
        renew()
        for item in group:
            item.how.commit()

    return Message(group[0].leaf.dtype, source, target, finish, group[0].how.codec, residual)


def _slices(group: list[_Item]) -> Iterator[tuple[_Item, slice]]:
    """Each tensor with its place in the packed buffer."""
    start = 0
    for item in group:
        yield item, slice(start, start + item.leaf.size)
        start += item.leaf.size


def _gathered(group: list[_Item]) -> np.ndarray:
    buffer = np.empty(sum(item.leaf.size for item in group), carrier(group[0].leaf.dtype))
    for item, place in _slices(group):
        if item.how.source is None:
            item.leaf.load(buffer[place])
        else:
            buffer[place] = item.how.source
    return buffer


def _scatter(group: list[_Item], buffer: np.ndarray) -> Commit:
    def commit() -> None:
        for item, place in _slices(group):
            item.out.store(buffer[place])
    return commit


def _check_outs(outs: Sequence[Leaf]) -> None:
    if len(outs) > 1:  # one alone is checked when its buffer is made
        for out in outs:
            out.check_writable()
        check_disjoint(outs)
