"""What DistributedDataParallel's communication hooks do to a bucket of gradients: baseline `torch`.

    compression   of a float32 bucket                                    off by at most
    fp16, bf16    cast, all-reduced in 16 bits by gloo, cast back        (p + 2) u times the largest
    powersgd      as a matrix M of r rows and c columns, about square,   no bound of use; what is
                  rank 1: all-reduced are M q and M^T p, r + c elements  lost stays in its residual

u = 2^-11 (fp16), 2^-8 (bf16) is half a unit in the last place.  The bound: the input is rounded
once, or twice where it is divided by p first, and so is each of the p - 1 partial sums; all inputs
are positive, so no partial sum exceeds the largest result, and the roundings of the inputs together
count as two of it.  PowerSGD is PyTorch's own hook, called with an object that looks like DDP's
bucket, from the first iteration on (DDP starts with dense ones).

The hooks average.  For a sum the casts leave the division out; PowerSGD's mean is multiplied by p.

Sources: torch.distributed.algorithms.ddp_comm_hooks; Vogels, Karimireddy, Jaggi, "PowerSGD:
Practical low-rank gradient compression for distributed optimization", NeurIPS 2019.
"""

from math import isqrt

import numpy as np
import torch
import torch.distributed as dist
from contenders import Contender
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch_gloo import tensor

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def hooks(world: dist.ProcessGroup, size: int, op: str) -> list[Contender]:
    """fp16, bf16 and PowerSGD."""
    return [*(half(name, size, op) for name in HALVES), powersgd(world, size, op)]


def half(name: str, size: int, op: str) -> Contender:
    """The arithmetic of `fp16_compress_hook` and `bf16_compress_hook`."""
    dtype = HALVES[name]

    def call(send, recv):
        coded = tensor(send).to(dtype)
        if op == "mean":
            coded.div_(size)
        dist.all_reduce(coded)
        tensor(recv).copy_(coded)

    def slack(size: int, largest: float) -> float:
        unit = torch.finfo(dtype).eps / 2
        bound = (size + 2) * unit * (1 + unit) ** (size + 2) * largest
        return bound / size if op == "mean" else bound

    return Contender("gloo", call, baseline=True, compression=name, slack=slack)


class Bucket:
    """What PowerSGD asks of DDP's bucket: one matrix, and the elements that are left over."""

    def __init__(self, flat: torch.Tensor):
        self._flat = flat
        self._rows = isqrt(flat.numel())

    def buffer(self) -> torch.Tensor:
        """All elements, shape (n,)."""
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        """The same elements: shape (r, c) and (n - r c,)."""
        covered = self._flat.numel() // self._rows * self._rows
        matrix = self._flat[:covered].view(self._rows, -1)
        rest = self._flat[covered:]
        return [matrix, rest] if rest.numel() else [matrix]

    def index(self) -> int:
        """What the state keeps residuals by: there is one bucket of each size."""
        return self._flat.numel()

    def is_last(self) -> bool:
        """True after the last bucket of an iteration."""
        return True


def powersgd(world: dist.ProcessGroup, size: int, op: str) -> Contender:
    """PowerSGD of rank 1 with error feedback and warm start, PyTorch's defaults."""
    state = _state(world)

    def reduce(state, flat):
        powerSGD_hook(state, Bucket(flat)).wait()
        if op == "sum":
            flat.mul_(size)

    def call(send, recv):
        flat = tensor(recv)
        if recv is not send:
            flat.copy_(tensor(send))
        reduce(state, flat)

    def law(given: np.ndarray, residual: np.ndarray) -> None:
        # In memory aligned alike on all ranks, as DDP's is: products may round by alignment.
        fresh, flat = _state(world), tensor(given).clone()
        reduce(fresh, flat)
        given[:] = flat.numpy()
        residual[:] = fresh.error_dict[residual.size].numpy()

    def slack(size: int, largest: float) -> float:
        return np.inf

    return Contender("gloo", call, baseline=True, compression="powersgd", slack=slack, law=law)


def _state(world: dist.ProcessGroup) -> PowerSGDState:
    state = PowerSGDState(world, matrix_approximation_rank=1, start_powerSGD_iter=2)
    state.iter = state.start_powerSGD_iter
    return state
