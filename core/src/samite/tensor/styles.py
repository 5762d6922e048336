"""torch's parallel styles as placements: `ColwiseParallel`, `RowwiseParallel`, `SequenceParallel` and the
`PrepareModule...` ones of torch.distributed.tensor.parallel, by the name of the module that they are for.

A style says how the parameters of a module lie over one axis, and what its input and output are to be. The first is
what placements are; the second is done by hooks, on distributed tensors. A compiled function finds layouts for all that
lies between, so there the parameters are enough. As what a plain tensor is, `input_layouts` are not asked: it is a
global one, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from samite.errors import PlacementError, nearest
from samite.placement import Placement, Replicate, Shard, as_placement
from samite.tensor.tensor import Tensor

__all__ = ["Styled", "expanded", "follow", "is_style"]

Styled = Mapping[str, Any]
"""Name or pattern -> axis -> placement, of a tensor; or -> style, or axis -> style, of a module."""

_OF_PARAMETERS = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel")
_OF_VALUES = ("PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput")


def is_style(value: object) -> bool:
    """Whether a value is one of torch's styles, known by name so that placements need no torch.distributed."""
    return any(kind.__name__ == "ParallelStyle" for kind in type(value).__mro__)


def expanded(
    styled: Styled, modules: Iterable[tuple[str, nn.Module]], axes: Iterable[str]
) -> tuple[dict[str, dict[str, Any]], list[tuple[nn.Module, str, Any]]]:
    """The placements of parameters that styles stand for, in place of them; and which module follows which style over
    which axis. `modules` are by name. Raises PlacementError for a style that is not known, that names no module or one
    that it does not fit, and for one without an axis where there are several."""
    placements: dict[str, dict[str, Any]] = {}
    following: list[tuple[nn.Module, str, Any]] = []
    known, axes = list(modules), list(axes)
    for pattern, given in styled.items():
        by_axis: Any = {_only(axes, given): given} if is_style(given) else given
        if not isinstance(by_axis, Mapping):
            placements[pattern] = by_axis  # which is refused where placements are read
            continue
        plain = {axis: value for axis, value in by_axis.items() if not is_style(value)}
        if plain or not by_axis:
            placements[pattern] = placements.get(pattern, {}) | plain
        for axis, style in by_axis.items():
            if not is_style(style):
                continue
            fitting = [(name, module) for name, module in known if name == pattern or fnmatchcase(name, pattern)]
            if not fitting:
                raise PlacementError(f'"{pattern}" names no module', help=nearest(pattern, [name for name, _ in known]))
            for name, module in fitting:
                following.append((module, axis, style))
                for parameter, placement in _of_parameters(style, name, module).items():
                    full = f"{name}.{parameter}" if name else parameter
                    placements[full] = placements.get(full, {}) | {axis: placement}
    return placements, following


def follow(module: nn.Module, axis: str, style: Any) -> None:
    """Have a module's inputs and outputs lie over `axis` as the style says, whenever they are distributed tensors."""
    before, named, after = _wanted(module, style)

    def enter(
        _: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _all_along(inputs, axis, before), {k: _along(v, axis, named.get(k)) for k, v in keywords.items()}

    def leave(_: nn.Module, inputs: object, output: Any) -> Any:
        if isinstance(output, (tuple, list)):
            made: Any = _all_along(output, axis, after)
            return type(output)(*made) if hasattr(output, "_fields") else type(output)(made)
        return _along(output, axis, after[0] if after else None)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


Wanted = Sequence[Placement | None]
"""What positional inputs or outputs are to be, None where that is left open; further ones are."""


def _wanted(module: nn.Module, style: Any) -> tuple[Wanted, Mapping[str, Placement | None], Wanted]:
    """Of positional inputs, named inputs and outputs."""
    match type(style).__name__:
        case "SequenceParallel":
            return _placements(style.sequence_sharding), {}, ()
        case "ColwiseParallel":
            return (Replicate(),), {}, _placements(style.output_layouts)
        case "RowwiseParallel":  # a table split by rows is looked up with whole indices
            before = Replicate() if isinstance(module, nn.Embedding) else Shard(-1)
            return (before,), {}, _placements(style.output_layouts)
        case "PrepareModuleOutput":
            return (), {}, _placements(style.desired_output_layouts)
        case "PrepareModuleInputOutput":
            before, named, _ = _wanted(module, style.prepare_module_input)
            return before, named, _wanted(module, style.prepare_module_output)[2]
        case _:
            named = style.desired_input_kwarg_layouts or {}
            return (
                _placements(style.desired_input_layouts or ()),
                {name: None if p is None else as_placement(p) for name, p in named.items()},
                (),
            )


def _placements(given: Any) -> Wanted:
    given = given if isinstance(given, (tuple, list)) else (given,)
    return [None if placement is None else as_placement(placement) for placement in given]


def _only(axes: list[str], style: object) -> str:
    if len(axes) != 1:
        raise PlacementError(
            f"{type(style).__name__} on a mesh with the axes {', '.join(axes)}",
            help=f'name one of them: {{"{axes[-1]}": {type(style).__name__}()}}',
        )
    return axes[0]


def _of_parameters(style: Any, name: str, module: nn.Module) -> dict[str, Placement]:
    kind = type(style).__name__
    if kind in _OF_VALUES:
        return {}
    if kind not in _OF_PARAMETERS:
        known = ", ".join((*_OF_PARAMETERS, *_OF_VALUES))
        raise PlacementError(f"{kind} is not a style that samite knows", help=f"known: {known}")
    own = [parameter for parameter, _ in module.named_parameters(recurse=False)]
    if kind == "SequenceParallel":
        return dict.fromkeys(own, Replicate())
    columns = kind == "ColwiseParallel"
    if isinstance(module, nn.Linear):
        split: dict[str, Placement] = {
            "weight": Shard(0 if columns else 1),
            "bias": Shard(0) if columns else Replicate(),
        }
    elif isinstance(module, nn.Embedding):
        split = {"weight": Shard(1 if columns else 0)}
    else:
        raise PlacementError(
            f'{kind} of "{name}", which is a {type(module).__name__}',
            help="it is for nn.Linear and nn.Embedding; place the parameters of others by name",
        )
    return {parameter: split[parameter] for parameter in own}


def _along(x: Any, axis: str, placement: Placement | None) -> Any:
    """`x` with this placement over one axis, as it was over the others."""
    if not isinstance(x, Tensor) or placement is None:
        return x
    return x.redistribute(x.placements | {axis: placement})


def _all_along(values: Sequence[Any], axis: str, wanted: Wanted) -> tuple[Any, ...]:
    return tuple(_along(x, axis, wanted[i] if i < len(wanted) else None) for i, x in enumerate(values))
