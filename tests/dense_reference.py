"""The dense codecs and their kernels in NumPy, written from the docstrings: the bits to expect."""

import ml_dtypes
import numpy as np

from collectives.kernels.codec import Emit

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
          "float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104,
           "float64": float(np.finfo(np.float64).max)}
ONE = np.float32(1)


def saturated(values, name):
    """`values` rounded to the type; what is finite stays finite."""
    if values.dtype == np.float64 and name != "float64":
        values = _clipped(values, LARGEST["float32"]).astype(np.float32)
    with np.errstate(over="ignore"):
        return _clipped(values, LARGEST[name]).astype(DTYPES[name])


def _clipped(values, largest):
    if largest > np.finfo(values.dtype).max:
        return values
    top = values.dtype.type(largest)
    return np.where(np.isfinite(values), np.clip(values, -top, top), values)


def encode(codec, x, seed=0):
    """The wire of float32 x, as uint8."""
    if codec.bits == 16:
        return saturated(x, codec.name).view(np.uint8)
    starts = range(0, x.size, codec.block)
    return np.concatenate([np.zeros(0, np.uint8), *(
        _encode_block(codec, x[i:i + codec.block], seed, number)
        for number, i in enumerate(starts))])


def decode(codec, wire, n):
    """The n float32 on the wire."""
    if codec.bits == 16:
        return wire.view(DTYPES[codec.name]).astype(np.float32)
    parts, at = [np.zeros(0, np.float32)], 0
    for start in range(0, n, codec.block):
        m = min(codec.block, n - start)
        row = -(-m * codec.bits // 8)
        scale = wire[at:at + 4].view(np.float32)[0]
        parts.append(_values(codec, _unpacked(codec, wire[at + 4:at + 4 + row], m)) * scale)
        at += 4 + row
    return np.concatenate(parts)


def _encode_block(codec, x, seed, number):
    if not np.isfinite(x).all():
        scale, fields = np.float32(np.nan), np.zeros(x.size, np.uint8)
    elif codec.name == "sign":
        scale, fields = np.float32(_total(np.abs(x)) / x.size), (x < 0).astype(np.uint8)
    else:
        levels = np.float32(2 ** (codec.bits - 1) - 1)
        top = np.float32(LARGEST["float32"]) / levels
        with np.errstate(over="ignore"):
            top = top if np.isfinite(top * levels) else np.nextafter(top, np.float32(0))
        scale = min(max(np.abs(x).max() / levels, np.float32(2.0**-126)), top)
        value = x * (ONE / scale)
        codes = _rounded_up_by_chance(value, seed, number) if codec.stochastic else np.rint(value)
        fields = np.clip(codes, -levels, levels).astype(np.int8).view(np.uint8)
    return np.concatenate([np.array([scale], np.float32).view(np.uint8), _packed(codec, fields)])


def _total(sizes):
    """Sum in 128 lanes: see the docstring of `codecs.sign`."""
    row = -(-sizes.size // 8)
    width = -(-row // 128) * 128
    padded = np.zeros((8, width))
    for bit, part in enumerate(sizes[i:i + row] for i in range(0, sizes.size, row)):
        padded[bit, :part.size] = part
    lanes = np.zeros(128)
    for part in padded.reshape(-1, 128):
        lanes = lanes + part
    while lanes.size > 1:
        lanes = lanes[:lanes.size // 2] + lanes[lanes.size // 2:]
    return lanes[0]


def _packed(codec, fields):
    """Byte j holds elements j, S + j, 2 S + j, ... from its low bits up."""
    count = 8 // codec.bits
    row = -(-fields.size // count)
    padded = np.zeros(count * row, np.uint8)
    padded[:fields.size] = fields & (2**codec.bits - 1)
    shifts = codec.bits * np.arange(count, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(padded.reshape(count, row) << shifts, axis=0)


def _unpacked(codec, row, m):
    shifts = codec.bits * np.arange(8 // codec.bits, dtype=np.uint8)[:, None]
    return ((row >> shifts) & (2**codec.bits - 1)).ravel()[:m]


def _values(codec, fields):
    if codec.name == "sign":
        return np.where(fields, -ONE, ONE)
    half = 2 ** (codec.bits - 1)
    return ((fields.astype(np.int32) ^ half) - half).astype(np.float32)


def _rounded_up_by_chance(value, seed, number):
    elements = np.arange(value.size, dtype=np.uint32)
    one, two = (_key(seed, number, which) for which in (0, 1))
    draws = _mixed(_mixed(elements ^ one) ^ two)
    floor = np.floor(value)
    threshold = ((draws >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return np.where(threshold < value - floor, floor + ONE, floor)


def _key(seed, number, which):
    x = np.array([which + 1], np.uint32)
    for word in (seed, seed >> 32, number, number >> 32):
        x = _mixed(x ^ np.uint32(word & 0xFFFFFFFF))
    return x


def _mixed(x):
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def run(codec, emit, a, incoming, residual, divisor, seed, dst_name):
    """What a kernel leaves: (dst, residual, wire), None where it has none."""
    a_name = "" if a is None else a.dtype.name
    acc = np.dtype("float64" if "float64" in (a_name, dst_name) else "float32")
    ratio = acc.type(divisor)
    arrived = 0 if incoming is None else decode(codec, incoming[0], incoming[1]).astype(acc)
    if emit is Emit.DECODE:
        return saturated(arrived, dst_name), None, None
    v = a.astype(acc) if incoming is None else a.astype(acc) + arrived
    if emit is Emit.PARTIAL:
        return v, None, None
    v = v if residual is None else v + residual
    if emit is Emit.VALUE:
        dst = saturated(v / ratio, dst_name)
        return dst, _kept(None, v, ratio, dst.astype(acc), residual), None
    wire = encode(codec, saturated(v if emit is Emit.WIRE else v / ratio, "float32"), seed)
    decoded = decode(codec, wire, v.size).astype(acc)
    if emit is Emit.WIRE:
        return None, _kept(codec, v, acc.type(1), decoded, residual), wire
    dst = saturated(decoded, dst_name)
    return dst, _kept(codec, v, ratio, dst.astype(acc), residual), wire


def _kept(codec, v, ratio, result, residual):
    """v - ratio * result, but the old residual where v, or the block, is not finite."""
    if residual is None:
        return None
    top = np.finfo(v.dtype).max
    with np.errstate(over="ignore", invalid="ignore"):
        new = v - np.clip(ratio * result, -top, top)
    finite = np.isfinite(v)
    if codec is not None and codec.bits != 16:
        for i in range(0, v.size, codec.block):
            finite[i:i + codec.block] = finite[i:i + codec.block].all()
    return np.where(finite, new, residual)
