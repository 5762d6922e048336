"""Modules with distributed parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

import torch
from torch import nn

from samite.errors import InputError, PlacementError, nearest
from samite.frontend.slots import unwatched
from samite.mesh import Mesh
from samite.tensor.linear import Linear
from samite.tensor.making import tensor
from samite.tensor.styles import Styled, expanded, follow, is_style
from samite.tensor.tensor import Tensor

__all__ = ["distribute_module"]

Module = TypeVar("Module", bound=nn.Module)


def distribute_module(module: Module, mesh: Mesh, placements: Styled | object | None = None) -> Module:
    """`module` itself, with its parameters and buffers laid out over a mesh.

    `placements` are by name or pattern ({"blocks.*.up.weight": {"tp": Shard(0)}}); of several that match one tensor the
    last wins, axis by axis, and what none matches is replicated. Names of modules may have torch's parallel styles, as
    for `parallelize_module`: {"blocks.*.up": ColwiseParallel(), "blocks.*.down": {"tp": RowwiseParallel()}}.

    Parameters keep their identity, so an optimizer may hold them already. Raises PlacementError for a pattern that
    names nothing, InputError for a parameter that is part of a graph.
    """
    styled: Styled = {"": placements} if is_style(placements) else cast(Styled, placements or {})
    given, following = expanded(styled, module.named_modules(), mesh)
    held = dict(_held(module))
    for pattern in given:
        if not any(_matches(name, pattern) for name in held):
            raise PlacementError(f'placement "{pattern}" names no parameter', help=nearest(pattern, held))
    seen: set[int] = set()
    for name, value in held.items():
        if id(value) in seen or isinstance(value, Tensor):
            continue  # tied, or distributed already
        seen.add(id(value))
        wanted: dict[str, object] = {}
        for pattern, by_axis in given.items():
            if _matches(name, pattern):
                wanted |= by_axis
        with unwatched(module.get_submodule(name.rpartition(".")[0])):
            _replace(name, value, mesh, wanted)
    for inner in module.modules():
        if type(inner) is nn.Linear and isinstance(inner.weight, Tensor):
            inner.__class__ = Linear
    for inner, axis, style in following:
        follow(inner, axis, style)
    return module


def _held(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _replace(name: str, value: torch.Tensor, mesh: Mesh, placements: Mapping[str, object]) -> None:
    try:
        made: Any = tensor(value, mesh, placements)
    except PlacementError as error:
        error.what = f"{name}: {error.what}"
        raise
    if isinstance(value, nn.Parameter):
        made = nn.Parameter(made, requires_grad=value.requires_grad)
    try:
        torch.utils.swap_tensors(value, made)
    except RuntimeError as error:
        raise InputError(
            f"{name} cannot be distributed: {error}", help="distribute a module before its first forward"
        ) from error
