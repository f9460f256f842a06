"""PyTorch CPU tensors, in place and zero-copy.

Autograd does not see the reduction: data is written through a detached alias, `requires_grad`,
`is_leaf` and `grad_fn` stay, and the version counter is bumped so that a backward pass that saved
the old data raises instead of using the new.  A tensor that is not a leaf of the graph is treated
the same; its `grad_fn` then describes the value before the reduction.

Tensors with a lazy conjugation or negation are staged: a resolved copy is reduced and written back.
"""

import torch
from torch.autograd.graph import increment_version

from collectives import dtypes
from collectives.adapters.leaf import Commit, Leaf, meets_itself, unsupported

_NAMES = {getattr(torch, name): name for name in dtypes.NAMES if hasattr(torch, name)}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class TorchLeaf(Leaf):
    """See the module docstring."""

    __slots__ = ()
    framework = "torch"

    def empty(self, shape=None) -> Leaf:
        like = self.owner.detach()
        if shape is None:  # keeps channels_last and other dense layouts
            return adapt(torch.empty_like(like))
        return adapt(torch.empty(shape, dtype=like.dtype, device="cpu"))

    def _on_write(self) -> Commit:
        return self._bump

    def _bump(self) -> None:
        increment_version(self.owner)


class ResolvedLeaf(TorchLeaf):
    """A tensor with a lazy conjugation or negation; `resolved` is its copy without."""

    __slots__ = ("resolved",)

    def __init__(self, owner: torch.Tensor, dtype: str):
        self.resolved = owner.detach().resolve_conj().resolve_neg().contiguous()
        super().__init__(owner, dtype, _alias(self.resolved, dtype))

    @property
    def writable(self) -> bool:
        return not meets_itself(_alias(_physical(self.owner), self.dtype))

    def inout(self):
        self.check_writable()
        return super().inout()

    def target(self):
        self.check_writable()
        return super().target()

    def _on_write(self) -> Commit:
        return self._write_back

    def _write_back(self) -> None:
        self.owner.detach().copy_(self.resolved)


def adapt(x) -> Leaf:
    """The leaf of a dense CPU tensor."""
    if not isinstance(x, torch.Tensor):
        raise unsupported(x)
    if type(x) not in _PLAIN and type(x).__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
        raise TypeError(f"cannot reduce a {type(x).__qualname__}: expected a plain CPU tensor, "
                        "such as its local part")
    name = _NAMES.get(x.dtype)
    if name is None:
        raise dtypes.unsupported(x.dtype)
    if x.is_conj() or x.is_neg():
        return ResolvedLeaf(x, name)
    try:
        return TorchLeaf(x, name, _alias(x.detach(), name))
    except (TypeError, RuntimeError) as error:
        raise _refusal(x) from error


def _alias(x: torch.Tensor, name: str):
    """The memory of `x` as an array of the carrier dtype; NumPy has no bfloat16 of its own."""
    return dtypes.carried((x.view(torch.int16) if name == "bfloat16" else x).numpy(), name)


def _physical(x: torch.Tensor) -> torch.Tensor:
    """`x` without its lazy conjugation and negation, on the same memory."""
    x = x.detach()
    x = x.conj() if x.is_conj() else x
    return torch._neg_view(x) if x.is_neg() else x


def _refusal(x: torch.Tensor) -> TypeError:
    """Why `x` has no memory that we can reduce."""
    if x.is_nested:
        return TypeError("cannot reduce a nested tensor: expected its values(), or a padded tensor")
    if x.layout is not torch.strided:
        return TypeError(f"cannot reduce a tensor of layout {x.layout}: expected x.to_dense()")
    if x.device.type == "meta":
        return TypeError("cannot reduce a meta tensor: it has no data")
    if x.device.type != "cpu":
        return TypeError(f"cannot reduce a tensor on {x.device}: it needs the GPU executor, "
                         "not in this version; expected x.cpu()")
    return TypeError(f"cannot reduce this {type(x).__qualname__}: it has no memory of its own "
                     "(is it inside torch.func or torch.compile?)")
