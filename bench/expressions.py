"""What one would write for each codec in NumPy and in PyTorch, to time our kernels against.

    encode(x) -> wire            wire: a tuple of arrays, in a layout of the expression's own
    decode_add(wire, acc)        acc += what the wire stands for

x and acc are float32, their length a multiple of the block.  A baseline is (encode, decode_add),
without error feedback, stochastic rounding or any care for numbers that are not finite.
"""

from collections.abc import Callable

import numpy as np

Baseline = tuple[Callable, Callable]


def numpy_baselines(codec) -> Baseline | None:
    """The expressions for `codec` in NumPy; None if it has no such type."""
    if codec.name == "float16":
        return _cast(np.float16)
    if codec.name == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            return None
        return _cast(bfloat16)
    if codec.name == "sign":
        return _numpy_sign(codec.block)
    if hasattr(codec, "block"):
        return _numpy_levels(codec.block, codec.bits)
    return _numpy_sparse(codec)


def _cast(dtype) -> Baseline:
    def decode_add(wire, acc):
        acc += wire[0].astype(np.float32)

    return lambda x: (x.astype(dtype),), decode_add


def _numpy_levels(block: int, bits: int) -> Baseline:
    top, fields = 2 ** (bits - 1) - 1, 8 // bits
    shifts = (bits * np.arange(fields, dtype=np.uint8))[:, None]

    def encode(x):
        x = x.reshape(-1, block)
        scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(top)
        codes = np.rint(x / scale).astype(np.int8)
        if fields > 1:
            low = codes.view(np.uint8).reshape(len(x), fields, -1) & np.uint8(2**bits - 1)
            codes = np.bitwise_or.reduce(low << shifts, axis=1)
        return scale, codes

    def decode_add(wire, acc):
        scale, codes = wire
        if fields > 1:
            left = (codes[:, None, :] >> shifts).astype(np.uint8) << np.uint8(8 - bits)
            codes = (left.view(np.int8) >> np.int8(8 - bits)).reshape(len(scale), -1)
        acc.reshape(-1, block)[:] += scale * codes

    return encode, decode_add


def _numpy_sign(block: int) -> Baseline:
    def encode(x):
        return np.abs(x).reshape(-1, block).mean(axis=1, keepdims=True), np.packbits(x < 0)

    def decode_add(wire, acc):
        scale, bits = wire
        negative = np.unpackbits(bits).reshape(-1, block)
        acc.reshape(-1, block)[:] += np.where(negative, -scale, scale)

    return encode, decode_add


def _numpy_sparse(codec) -> Baseline:
    def encode(x):
        if codec.name == "topk":
            kept = np.argpartition(np.abs(x), -codec.kept(x.size))[-codec.kept(x.size):]
        else:
            level = codec.value or codec.relative * np.sqrt(np.mean(np.square(x)))
            kept = np.flatnonzero(np.abs(x) >= level)
        return kept.astype(np.uint32), x[kept]

    def decode_add(wire, acc):
        acc[wire[0]] += wire[1]

    return encode, decode_add


def torch_baselines(codec) -> Baseline | None:
    """The expressions for `codec` in PyTorch, on one core; None where there is no PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    if codec.name in ("float16", "bfloat16"):
        encode, decode_add = _torch_cast(torch, getattr(torch, codec.name))
    elif codec.name == "sign":
        encode, decode_add = _torch_sign(torch, codec.block)
    elif hasattr(codec, "block"):
        if codec.bits != 8:
            return None  # no packing
        encode, decode_add = _torch_int8(torch, codec.block)
    else:
        encode, decode_add = _torch_sparse(torch, codec)
    return (lambda x: encode(torch.from_numpy(x)),
            lambda wire, acc: decode_add(wire, torch.from_numpy(acc)))


def _torch_cast(torch, dtype) -> Baseline:
    return lambda x: (x.to(dtype),), lambda wire, acc: acc.add_(wire[0])


def _torch_int8(torch, block: int) -> Baseline:
    def encode(x):
        x = x.view(-1, block)
        scale = x.abs().amax(dim=1, keepdim=True) / 127
        return scale, torch.round(x / scale).to(torch.int8)

    return encode, lambda wire, acc: acc.view(-1, block).addcmul_(wire[0], wire[1])


def _torch_sign(torch, block: int) -> Baseline:
    """One byte per element: PyTorch packs no bits."""
    def encode(x):
        return x.view(-1, block).abs().mean(dim=1, keepdim=True), x < 0

    def decode_add(wire, acc):
        scale, negative = wire
        acc.view(-1, block).add_(torch.where(negative.view(-1, block), -scale, scale))

    return encode, decode_add


def _torch_sparse(torch, codec) -> Baseline:
    def encode(x):
        if codec.name == "topk":
            kept = torch.topk(x.abs(), codec.kept(x.numel()), sorted=False).indices
        else:
            level = codec.value or codec.relative * x.square().mean().sqrt()
            kept = torch.nonzero(x.abs() >= level).view(-1)
        return kept, x[kept]

    return encode, lambda wire, acc: acc.index_add_(0, wire[0], wire[1])


BASELINES = {"numpy": numpy_baselines, "torch": torch_baselines}
