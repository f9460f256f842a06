"""A verb and its tensors, checked and turned into messages: everything before MPI is needed.

    call.parts      one contiguous exchange each, of one dtype
    call.finish()   brings results into the user's memory and returns what the verb returns

All ranks find the same errors in the same calls, before any message.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collectives import containers, messages, schedules
from collectives.adapters.leaf import Leaf
from collectives.arrays import check_out
from collectives.compression import treatments
from collectives.dtypes import check_known, check_op
from collectives.kernels.codec import Codec
from collectives.kernels.reduce import as_reals

SHARED = "shared"  # the algorithm for ranks that are all on one host; see `whole_host`


@dataclass(slots=True)
class Part:
    """One contiguous exchange.

    counts : as in `plan.Signature`;  codec, residual : as in `messages.Treatment`
    """

    dtype: str
    op: str
    counts: tuple[int, ...]
    source: np.ndarray
    target: np.ndarray
    codec: Codec | None = None
    residual: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array: what algorithms are chosen by."""
        return max(self.source.nbytes, self.target.nbytes)


@dataclass(slots=True)
class Call:
    """One call of one verb on one rank."""

    verb: str
    op: str
    root: int
    algorithm: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each
    parts: list[Part]
    finish: Callable[[], object]
    reads: list[np.ndarray] = field(default_factory=list)
    writes: list[np.ndarray] = field(default_factory=list)
    number: int = 0  # of the calls of its thread on its communicator
    repeat: tuple | None = None  # what makes another call the same but for the address

    def __str__(self) -> str:
        shapes = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in self.tensors[:8])
        more = f" and {len(self.tensors) - 8} more" if len(self.tensors) > 8 else ""
        return (f"call {self.number}: {self.verb}({shapes}{more}, op={self.op}, root={self.root}, "
                f"algorithm={self.algorithm}, compression={self._compression()})")

    def _compression(self) -> str:
        """The codecs of its parts, in order; two ranks that differ in one differ here."""
        codecs = dict.fromkeys(repr(part.codec) for part in self.parts)
        return "+".join(codecs) or "None"


def algorithms(verb: str, one_host: bool) -> tuple[str, ...]:
    """Names that a call of `verb` may be given as its algorithm."""
    special = ("auto", "native", SHARED) if one_host else ("auto", "native")
    return (*special, *schedules.algorithms(verb))


def check_common(verb: str, size: int, root, algorithm: str, compression, one_host: bool) -> int:
    """Check what is not a tensor; the root as an int.

    Raises
    ------
    ValueError
        For an algorithm that the verb does not have, or not with compression, or not on several
        hosts, or a root that is no rank.
    """
    known = algorithms(verb, one_host)
    if algorithm not in known:
        raise ValueError(f"{verb}: algorithm={algorithm!r}: expected one of {', '.join(known)}")
    if compression is not None and not compresses(verb, algorithm):
        able = [name for name in known if compresses(verb, name)]
        raise ValueError(f"{verb}: algorithm={algorithm!r} with compression={compression!r}: "
                         f"expected one of {', '.join(able)}")
    if not isinstance(root, (int, np.integer)) or not 0 <= root < size:
        raise ValueError(f"{verb}: root={root!r}: expected a rank from 0 to {size - 1}")
    return int(root)


def compresses(verb: str, algorithm: str) -> bool:
    """True if the algorithm's messages can be encoded: those of schedules, with one exception."""
    return algorithm not in ("native", SHARED) and not schedules.reencodes(verb, algorithm)


def elementwise(verb: str, tensor, op: str, out, rank: int, root: int, algorithm: str,
                compression=None, residual=None) -> Call:
    """allreduce, reduce and broadcast: the result has the shape of the tensor."""
    leaves, rebuild = containers.as_leaves(tensor)
    ops = _check_ops(verb, leaves, op)
    receives = verb != "reduce" or rank == root
    results = _results(leaves, out, receives)
    write_only = verb == "broadcast" and rank != root
    how = treatments(verb, op, tensor, leaves, results, compression, residual, not write_only)
    if not receives:
        packed = messages.read_only(leaves, how)
    elif write_only:
        packed = messages.write_only(results, how)
    else:
        packed = messages.exchanged(leaves, results, how)
    if out is not None and receives:
        _, rebuild = containers.flatten(out)
    parts = [_part(m.dtype, ops[m.dtype], (m.source.size,), m.source, m.target, m.codec,
                   m.residual) for m in packed]

    def finish():
        for message in packed:
            message.commit()
        if not receives:
            return tensor
        return rebuild([leaf.value() for leaf in results])

    return Call(verb, op, root, algorithm, _shapes(leaves), parts, finish,
                reads=[leaf.array for leaf in leaves],
                writes=[leaf.array for leaf in results if receives] + _renewed(how))


def _results(leaves: list[Leaf], out, receives: bool) -> list[Leaf]:
    """Where results go; where this rank gets none, the leaves."""
    if receives:
        return messages.results(leaves) if out is None else _outs(leaves, out)
    if out is None:  # the root could not write it: the same error on every rank
        for leaf in leaves:
            if not leaf.immutable:
                leaf.check_writable()
    return leaves


def _renewed(how: list[messages.Treatment]) -> list[np.ndarray]:
    """The residuals that a call writes."""
    return [one.residual for one in how if one.residual is not None]


def reduce_scatter(tensor, op: str, out, rank: int, size: int, algorithm: str, compression=None,
                   residual=None) -> Call:
    """The result is this rank's rows: np.array_split(reduced, size)[rank]."""
    def lay_out(leaf):
        rows = leaf.shape[0] if leaf.shape else 1
        row = leaf.size // rows if rows else 0
        split = [rows // size + (r < rows % size) for r in range(size)]
        return (split[rank], *leaf.shape[1:]), tuple(n * row for n in split)

    return _per_rank("reduce_scatter", tensor, op, out, algorithm, lay_out, compression, residual)


def allgather(tensor, out, size: int, algorithm: str, compression=None, residual=None) -> Call:
    """The result has shape (size, *shape)."""
    def lay_out(leaf):
        return (size, *leaf.shape), (leaf.size,) * size

    return _per_rank("allgather", tensor, "sum", out, algorithm, lay_out, compression, residual)


def _per_rank(verb, tensor, op, out, algorithm, lay_out, compression, residual) -> Call:
    leaves, rebuild = containers.as_leaves(tensor)
    ops = _check_ops(verb, leaves, op) if verb == "reduce_scatter" else {}
    laid_out = [lay_out(leaf) for leaf in leaves]
    shapes = [shape for shape, _ in laid_out]
    if out is None:
        results = [leaf.empty(shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    else:
        results = _outs(leaves, out, shapes)
        _, rebuild = containers.flatten(out)
    how = treatments(verb, op, tensor, leaves, results, compression, residual)
    parts, commits = [], []
    for leaf, result, (_, counts), one in zip(leaves, results, laid_out, how, strict=True):
        target, commit = result.target()
        commits += [commit, one.commit]
        source = leaf.read() if one.source is None else one.source
        parts.append(_part(leaf.dtype, ops.get(leaf.dtype, "sum"), counts, source, target,
                           one.codec, one.residual))

    def finish():
        for commit in commits:
            commit()
        return rebuild([leaf.value() for leaf in results])

    return Call(verb, op, 0, algorithm, _shapes(leaves), parts, finish,
                reads=[leaf.array for leaf in leaves],
                writes=[leaf.array for leaf in results] + _renewed(how))


def _check_ops(verb: str, leaves: list[Leaf], op: str) -> dict[str, str]:
    """The operation to run for each dtype."""
    if verb == "broadcast":
        return {leaf.dtype: "sum" for leaf in leaves}
    check_known(op, verb)
    return {leaf.dtype: check_op(leaf.dtype, op, verb) for leaf in leaves}


def _outs(leaves: list[Leaf], out, shapes=None) -> list[Leaf]:
    outs, _ = containers.as_leaves(out)
    if len(outs) != len(leaves):
        raise ValueError(f"out holds {len(outs)} tensors: expected {len(leaves)}, as the input")
    shapes = shapes or [leaf.shape for leaf in leaves]
    for leaf, result, shape in zip(leaves, outs, shapes, strict=True):
        check_out(leaf, result, shape)
    return outs


def _part(dtype: str, op: str, counts: tuple[int, ...], source, target, codec, residual) -> Part:
    dtype, times = as_reals(dtype, op)
    if times > 1:
        counts = tuple(times * n for n in counts)
    return Part(dtype, op, counts, source, target, codec, residual)


def _shapes(leaves: list[Leaf]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((leaf.dtype, tuple(leaf.shape)) for leaf in leaves)
