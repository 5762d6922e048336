"""Running captured programs on real tensors, beside plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from samite.frontend import Capture, StateTree, capture
from samite.frontend.hyperparameters import Entry
from samite.frontend.places import Place
from samite.testing.counter_rng import counter_rng

__all__ = ["Replay", "assert_same_state", "check_steps", "train_step"]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor) -> Tensor:
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Replay:
    """Calls `fn` through its captured programs, one for each key, as the API does with worker programs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.captures: dict[Hashable, Capture] = {}
        self.read: set[Entry] = set()
        self.places: dict[Place, None] = {}

    def __call__(self, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        tree = StateTree.from_call(self.fn, args, kwargs)
        captured = self.captures.get((tree.key(self.read, self.places), tree.sizes))
        if captured is None:
            captured = capture(self.fn, args, kwargs)
            self.read |= captured.read
            self.places |= dict.fromkeys(captured.places)
            self.captures[tree.key(self.read, self.places), tree.sizes] = captured
        values = [leaf.get() for leaf in tree.leaves]
        assert all(v is not None for v in values)
        values = [v.detach().clone(memory_format=torch.contiguous_format) for v in values if v is not None]
        if len(captured.arguments) > len(values):
            assert captured.arguments[-1].kind == "rng"
            values.append(torch.tensor(seed))
        assert [tuple(v.shape) for v in values] == [a.shape for a in captured.arguments]
        assert [v.dtype for v in values] == [a.dtype for a in captured.arguments]
        with torch.no_grad():
            results = captured.graph(*values)
        for spec, value in zip(captured.results, results, strict=True):
            if spec.kind == "state":
                leaf = tree.leaves[spec.argument] if spec.argument >= 0 else tree.leaf(spec.name)
                assert leaf.name == spec.name
                leaf.set(value.clone())
        for at in captured.deleted:
            tree.leaves[at].delete()
        return captured.rebuild([v for s, v in zip(captured.results, results, strict=True) if s.kind == "output"])


def check_steps(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    steps: int = 3,
    programs: int | None = None,
    tolerance: float = 1e-5,
    between: Callable[..., None] | None = None,
) -> Replay:
    """Run `fn` eagerly and through captures for some steps, on copies of `args`, and compare all that is visible."""
    eager, replay = copy.deepcopy(args), Replay(fn)
    mine = copy.deepcopy(args)
    for i in range(steps):
        with counter_rng(i):
            wanted = fn(*eager)
        got = replay(*mine, seed=i)
        assert_close(got, wanted, tolerance)
        assert_same_state(mine, eager, tolerance)
        if between is not None:
            between(*eager)
            between(*mine)
    assert programs is None or len(replay.captures) == programs, f"{len(replay.captures)} programs"
    return replay


def assert_close(got: Any, wanted: Any, tolerance: float) -> None:
    got_leaves, got_spec = pytree.tree_flatten(got)
    wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
    assert got_spec == wanted_spec
    for a, b in zip(got_leaves, wanted_leaves, strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b.detach(), rtol=tolerance, atol=tolerance)
        else:
            assert a == b


def assert_same_state(got: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> None:
    """Parameters, buffers, gradients, optimizer state and tensors among the arguments are equal, and equally absent."""
    for a, b in zip(got, wanted, strict=True):
        if isinstance(b, nn.Module):
            assert_close(dict(a.state_dict()), dict(b.state_dict()), tolerance)
            grads = [{n: p.grad for n, p in m.named_parameters()} for m in (a, b)]
            assert_close(*grads, tolerance)
        elif isinstance(b, torch.optim.Optimizer):
            states = [list(o.state_dict()["state"].items()) for o in (a, b)]
            assert_close(*states, tolerance)
        elif isinstance(b, (tuple, list)):
            assert_same_state(a, b, tolerance)
        elif isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
