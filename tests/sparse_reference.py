"""The sparse codecs and their kernels in NumPy, written from the docstrings: the bits to expect."""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from collectives.kernels.codec import Emit

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
          "float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}
NAN_KEY = 0x7F800001


class Outcome(NamedTuple):
    """What a kernel writes; None where it writes nothing."""

    dst: np.ndarray | None
    wire: np.ndarray | None
    residual: np.ndarray | None


def saturated(x, name):
    """x rounded to a type; what is finite stays finite."""
    if name in LARGEST and x.dtype.itemsize > 2:
        limit = x.dtype.type(min(LARGEST[name], float(np.finfo(x.dtype).max)))
        x = np.where(np.isfinite(x), np.clip(x, -limit, limit), x)
    if x.dtype == np.float64 and DTYPES[name].itemsize == 2:
        x = x.astype(np.float32)
    return x.astype(DTYPES[name])


def sent(x):
    """x as it travels."""
    values = saturated(x, "float32")
    values[np.isnan(values)] = np.float32(np.nan)
    return values


def keys(values):
    """Order of float32 magnitudes, as integers."""
    return np.minimum(values.view(np.uint32) & 0x7FFFFFFF, NAN_KEY).astype(np.int64)


def squares(values):
    """Their sum, in the order that the docstring of `kernels.select` gives."""
    exact = np.where(np.isfinite(values), values, 0).astype(np.float64) ** 2
    total = 0.0
    for start in range(0, values.size, 4096):
        piece = np.zeros(4096)
        piece[:exact[start:start + 4096].size] = exact[start:start + 4096]
        sums = np.zeros(256)
        for row in piece.reshape(16, 256):
            sums = sums + row
        while sums.size > 1:
            sums = sums[:sums.size // 2] + sums[sums.size // 2:]
        total += sums[0]
    return total


def chosen(codec, values):
    """Indices of what is sent, ascending."""
    key = keys(values)
    if codec.name == "topk":
        order = np.lexsort((np.arange(key.size), -key))
        return np.sort(order[:codec.kept(key.size)])
    t = codec.value
    if t is None:
        t = max(codec.relative * np.sqrt(squares(values) / values.size), 2.0**-149)
    return np.flatnonzero(key >= keys(np.array([t], np.float32))[0])


def pack(codec, values, indices):
    """The wire, as long as it is."""
    n, m = values.size, indices.size
    if codec.name == "threshold" and 2 * m >= n:
        dense = np.zeros(n, np.float32)
        dense[indices] = values[indices]
        body = dense.tobytes()
    else:
        body = values[indices].tobytes() + indices.astype(np.uint32).tobytes()
    header = np.int64(8 + len(body)).tobytes() if codec.variable else b""
    return np.frombuffer(header + body, np.uint8)


def kernel(codec, emit, a, wired, residual, divisor, dst):
    """The Outcome of a kernel.

    a : None for DECODE;  wired : what arrives as n float32, 0 where nothing does, or None;
    residual : None for none;  dst : name of the type
    """
    if emit is Emit.DECODE:
        return Outcome(saturated(wired, dst), None, None)
    acc = np.dtype(np.float64 if "float64" in (a.dtype.name, dst) else np.float32)
    total = a.astype(acc) + (0 if wired is None else wired.astype(acc))
    if emit is Emit.PARTIAL:
        return Outcome(total, None, None)
    v = total if residual is None else total + residual
    if emit is not Emit.VALUE:  # what is not finite is sent as it was given
        v = np.where(np.isfinite(total), v, total)
        residual = _healed(residual, total, v)
    share = v / acc.type(divisor) if emit in (Emit.FINAL, Emit.VALUE) else v
    if emit is Emit.VALUE:
        out = saturated(share, dst)
        return Outcome(out, None, _rest(residual, v, out, divisor))
    values = sent(share)
    indices = chosen(codec, values)
    taken = np.zeros_like(values)
    taken[indices] = values[indices]
    if emit is Emit.WIRE:
        return Outcome(None, pack(codec, values, indices), _rest(residual, v, taken, 1))
    out = saturated(taken, dst)
    return Outcome(out, pack(codec, values, indices), _rest(residual, v, out, divisor))


def _healed(residual, total, v):
    """The residual without what itself made v Inf or NaN, or is either."""
    if residual is None:
        return None
    to_blame = ~np.isfinite(residual) | (np.isfinite(total) & ~np.isfinite(v))
    return np.where(to_blame, residual.dtype.type(0), residual)


def _rest(old, v, out, divisor):
    """The new residual: the old one where v is not finite."""
    if old is None:
        return None
    return np.where(np.isfinite(v), v - v.dtype.type(divisor) * out.astype(v.dtype), old)
