"""What `compression` and `residual` of a call mean for each of its tensors.

    compression    None, a codec, its name, or a policy that chooses one for each tensor
    residual       None, an array like the tensor (a container like the container), or an
                   `ErrorFeedback`, which holds them by name

All is checked before any message, on every rank alike.  A residual has the tensor's shape, and its
dtype or that of its accumulator (float64 for float64, else float32).  Kernels work on accumulators,
so the latter is used in place and the former by way of a copy, rounded at the end.

A tensor that is not compressed but has a residual sends it along: source = x + residual, and what
rounding drops is the new residual.  So switching compression off loses nothing either.
"""

import numpy as np

from collectives.adapters.leaf import Commit, Leaf
from collectives.arrays import as_leaf, check_disjoint, overlap
from collectives.containers import flatten, names_of
from collectives.dtypes import accumulator
from collectives.kernels.codec import FLOATS, Codec
from collectives.messages import Treatment
from collectives.policies import TensorInfo, resolve
from collectives.rounding import narrow, widen


def treatments(verb: str, op: str, tree, leaves: list[Leaf], results: list[Leaf],
               compression, residual, contributes: bool = True) -> list[Treatment]:
    """One per tensor of `tree`, whose leaves are `leaves` and whose results go to `results`.

    contributes : False where this rank only receives; its residuals are then left alone, but an
        `ErrorFeedback` counts the call, since it says whether a tensor is compressed

    Raises
    ------
    TypeError
        If an explicit codec meets a tensor of no float type, or a residual has the wrong dtype.
    ValueError
        For an unknown codec, an op other than sum and mean, or a residual of another shape, that
        cannot be written, or that shares memory with a tensor.
    """
    if compression is None and residual is None:
        return [Treatment()] * len(leaves)
    names = names_of(tree)
    infos = [TensorInfo(name, leaf.dtype, leaf.size)
             for name, leaf in zip(names, leaves, strict=True)]
    codecs = [_checked(verb, op, resolve(compression, info), info) for info in infos]
    if hasattr(residual, "begin"):
        return _fed_back(residual, names, leaves, codecs, contributes)
    residuals = _residuals(residual if contributes else None, names, leaves, results)
    return [_treated(*one) for one in zip(leaves, codecs, residuals, strict=True)]


def _checked(verb: str, op: str, codec: Codec | None, info: TensorInfo) -> Codec | None:
    if codec is None:
        return None
    where = f" at {info.name}" if info.name else ""
    if info.dtype not in FLOATS:
        raise TypeError(f"{verb}: compression={codec!r} is not defined for {info.dtype}{where}: "
                        f"expected {', '.join(FLOATS)}")
    if verb in ("allreduce", "reduce", "reduce_scatter") and op not in ("sum", "mean"):
        raise ValueError(f"{verb}: op={op!r} cannot be compressed: expected sum or mean")
    return codec


def _fed_back(feedback, names, leaves: list[Leaf], codecs, contributes: bool
              ) -> list[Treatment]:
    """By an `ErrorFeedback`: all tensors are accepted before the state of any changes."""
    entries = []
    try:
        for name, leaf, codec in zip(names, leaves, codecs, strict=True):
            entries.append(feedback.begin(name, leaf.dtype, leaf.shape, codec))
    except Exception:
        for entry in entries:
            entry.cancel()
        raise
    return [_entered(*one, contributes) for one in zip(entries, leaves, codecs, strict=True)]


def _entered(entry, leaf: Leaf, codec: Codec | None, contributes: bool) -> Treatment:
    treatment = Treatment(codec if entry.active else None, commit=entry.end)
    if not contributes:
        return treatment
    if entry.residual is not None:
        treatment.residual = entry.residual.reshape(-1)
    if leaf.dtype in FLOATS:
        values = entry.source(widen(leaf.read(), leaf.dtype))
        if values is not None:
            treatment.source = narrow(values, leaf.dtype)
            if treatment.residual is not None:
                _keep_rounding(treatment, values, leaf.dtype)
    return treatment


def _keep_rounding(treatment: Treatment, values: np.ndarray, dtype: str) -> None:
    """What rounding the contribution to the tensor's type drops is residual at once."""
    if treatment.source.dtype == values.dtype:
        return
    dropped = values - widen(treatment.source, dtype)
    dropped[~np.isfinite(dropped)] = 0
    treatment.residual += dropped


def _treated(leaf: Leaf, codec: Codec | None, residual: Leaf | None) -> Treatment:
    """With a residual of the caller's, or none."""
    if residual is None:
        return Treatment(codec)
    if residual.dtype == accumulator(leaf.dtype, "sum"):
        held, commit = residual.inout()
    else:
        held = widen(residual.read(), leaf.dtype)

        def commit():
            residual.store(narrow(held, leaf.dtype))
    treatment = Treatment(codec, held, commit=commit)
    if codec is None:
        _send_along(treatment, widen(leaf.read(), leaf.dtype), leaf.dtype)
    return treatment


def _send_along(treatment: Treatment, values: np.ndarray, dtype: str) -> None:
    """Without a codec: send values + residual; the residual becomes what rounding drops."""
    residual, treatment.residual = treatment.residual, None
    total = values + residual
    treatment.source = narrow(total, dtype)

    def renew():
        np.subtract(total, widen(treatment.source, dtype), out=residual)
        residual[~np.isfinite(residual)] = 0
    treatment.commit = _both(renew, treatment.commit)


def _both(first: Commit, second: Commit) -> Commit:
    def commit():
        first()
        second()
    return commit


def _residuals(residual, names, leaves: list[Leaf], results: list[Leaf]) -> list[Leaf | None]:
    """The caller's residuals as leaves, checked."""
    if residual is None:
        return [None] * len(leaves)
    tensors, _ = flatten(residual)
    if names_of(residual) != names:
        raise ValueError(f"residual holds {_listed(residual)}: expected a container like the "
                         f"tensor's, of {len(leaves)} tensors")
    found = [None if x is None else as_leaf(x) for x in tensors]
    for name, leaf, of in zip(names, leaves, found, strict=True):
        if of is not None:
            _check_residual("residual" if name is None else f"residual at {name}", leaf, of)
    held = [leaf for leaf in found if leaf is not None]
    for leaf in held:
        if any(overlap(leaf, other) != "none" for other in leaves + results):
            raise ValueError("residual shares memory with a tensor: expected separate memory")
    check_disjoint(held)
    return found


def _check_residual(what: str, leaf: Leaf, residual: Leaf) -> None:
    expected = dict.fromkeys((accumulator(leaf.dtype, "sum"), leaf.dtype))
    if leaf.dtype not in FLOATS or residual.dtype not in expected:
        raise TypeError(f"{what} has dtype {residual.dtype}: expected {' or '.join(expected)}, "
                        f"for a tensor of {leaf.dtype}")
    if residual.shape != leaf.shape:
        raise ValueError(f"{what} has shape {residual.shape}: expected {leaf.shape}, as the tensor")
    try:
        residual.check_writable()
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _listed(residual) -> str:
    names = names_of(residual)
    return "one tensor" if names == [None] else ", ".join(map(str, names)) or "nothing"

