"""Calls of PyTorch's ops as functions of their tensors: what is captured, what is compared, and with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

__all__ = ["OpCall", "expected"]


@dataclass(frozen=True)
class OpCall:
    """One call of an op. `fn` takes all tensors of its arguments, and for a gradient the cotangents after them, as one
    list.

    `learned` are the tensors that a gradient is asked of, empty if none can be. `defined` is False for ops that give
    whatever was in memory (`empty`).
    """

    fn: Callable[[list[Tensor]], Any]
    tensors: tuple[Tensor, ...]
    learned: tuple[int, ...] = ()
    text: str = ""
    defined: bool = True

    @staticmethod
    def of(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], defined: bool = True) -> OpCall:
        """Tensors that require gradients are those that are learned."""
        leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        # A user may pass whatever strides he likes; a program's arguments are contiguous.
        tensors = tuple(leaves[i].detach().resolve_conj().resolve_neg().clone() for i in places)
        learned = tuple(k for k, i in enumerate(places) if leaves[i].requires_grad)

        def call(given: list[Tensor]) -> Any:
            values = list(leaves)
            for place, tensor in zip(places, given, strict=True):
                values[place] = tensor
            made_args, made_kwargs = pytree.tree_unflatten(values, spec)
            return op(*made_args, **made_kwargs)

        return OpCall(call, tensors, learned, _spelled(args, kwargs), defined)

    def backward(self, process: Callable[[Any], Any], generator: torch.Generator) -> OpCall | None:
        """The gradient of the call for random cotangents; None if nothing that it gives depends on what is learned.

        `process` picks from the outputs what has a gradient. Raises what the eager call raises.
        """
        count = len(self.tensors)

        def outputs(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            values = [x.detach().requires_grad_(i in self.learned) for i, x in enumerate(tensors)]
            # The call may write to its arguments, which a leaf that is learned does not allow.
            made = pytree.tree_leaves(process(self.fn([v.clone() if v.requires_grad else v for v in values])))
            return values, [y for y in made if isinstance(y, Tensor) and y.requires_grad]

        def gradients(given: list[Tensor]) -> Any:
            with torch.enable_grad():
                values, ys = outputs(given[:count])
                wanted = [values[i] for i in self.learned]
                return torch.autograd.grad(ys, wanted, given[count:], allow_unused=True, materialize_grads=True)

        with torch.enable_grad():
            _, ys = outputs([x.clone() for x in self.tensors])
        if not self.learned or not ys:
            return None
        cotangents = [_random(y, generator) for y in ys]
        return replace(self, fn=gradients, tensors=(*self.tensors, *cotangents))


def expected(call: OpCall, seed: int | None) -> tuple[Any, list[Tensor]]:
    """What plain PyTorch gives, and the tensors of the call afterwards (which it may have written to).

    A call that draws random numbers needs the seed of the program that it is compared with.
    """
    from samite.testing.counter_rng import counter_rng

    tensors = [x.clone() for x in call.tensors]
    if seed is None:
        return call.fn(tensors), tensors
    with counter_rng(seed):
        return call.fn(tensors), tensors


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    real = torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5
    if like.is_complex():
        return torch.complex(real, torch.rand(like.shape, generator=generator, dtype=torch.float64)).to(like.dtype)
    return real.to(like.dtype)


def _spelled(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The arguments as a reader wants them: "float32[5, 5], 1, keepdim=True"."""

    def one(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(one, value))}]"
        return str(value)

    return ", ".join([*map(one, args), *(f"{k}={one(v)}" for k, v in kwargs.items())])
