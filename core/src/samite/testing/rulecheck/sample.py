"""Samples: calls of one op with small operands, on which its rule is tried."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from samite.errors import RuleError
from samite.ir.graph import Op, overload
from samite.ir.importer import import_graph

__all__ = [
    "Fill",
    "Sample",
    "bools",
    "distinct",
    "distinct_ints",
    "floats",
    "ints",
    "one_op",
    "replace_tensors",
    "tensors_of",
]


@dataclass(frozen=True)
class Fill:
    """A tensor to be: uniform numbers of [low, high], or all different ones, or integers that differ along a dim."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    low: float = -2.0
    high: float = 2.0
    distinct: bool = False
    distinct_along: int | None = None

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.distinct_along is not None:
            lines = [n for i, n in enumerate(self.shape) if i != self.distinct_along % len(self.shape)]
            count = int(self.high) + 1
            order = torch.rand((*lines, count), generator=generator).argsort(-1)
            return order[..., : self.shape[self.distinct_along]].movedim(-1, self.distinct_along).contiguous()
        if self.distinct:
            count = max(torch.Size(self.shape).numel(), 1)
            steps = torch.randperm(count, generator=generator).to(torch.float64) / count
            drawn = self.low + steps * (self.high - self.low)
            return drawn[: torch.Size(self.shape).numel()].view(self.shape).to(self.dtype)
        if self.low == self.high:
            return torch.full(self.shape, self.low, dtype=self.dtype)
        if self.dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5
        if self.dtype.is_complex:
            parts = torch.rand((*self.shape, 2), generator=generator, dtype=torch.float64)
            return torch.view_as_complex(self.low + parts * (self.high - self.low)).to(self.dtype)
        if self.dtype.is_floating_point:
            drawn = torch.rand(self.shape, generator=generator, dtype=torch.float64)
            return (self.low + drawn * (self.high - self.low)).to(self.dtype)
        return torch.randint(int(self.low), int(self.high) + 1, self.shape, generator=generator).to(self.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: torch.dtype = torch.float64) -> Fill:
    return Fill(shape, dtype, low, high)


def distinct(*shape: int, low: float = -2.0, high: float = 2.0) -> Fill:
    """float64 without ties, for ops that say where an element was."""
    return Fill(shape, torch.float64, low, high, distinct=True)


def ints(*shape: int, low: int = -4, high: int = 4, dtype: torch.dtype = torch.int64) -> Fill:
    """`high` is included."""
    return Fill(shape, dtype, low, high)


def distinct_ints(*shape: int, dim: int, high: int) -> Fill:
    """int64 of [0, high], all different along `dim`: indices to write at."""
    return Fill(shape, torch.int64, 0, high, distinct_along=dim)


def bools(*shape: int) -> Fill:
    return Fill(shape, torch.bool)


@dataclass(frozen=True)
class Sample:
    """A call of the op named `op` ("aten.mm"). Arguments are `Fill`s, lists of them, and literals.

    `compare` is False where the op's values are undefined (`empty`): only shapes are checked then. `trusting` marks
    kernels that do not check indices, so they are never tried on shards that a rule does not allow. `gradient` is False
    where torch has no derivative, or one that no program can have (`_backward` ops are taken to have none).
    """

    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    compare: bool = True
    trusting: bool = False
    gradient: bool = True

    def __post_init__(self) -> None:
        if "_backward" in self.op or not self.compare:
            object.__setattr__(self, "gradient", False)

    def __str__(self) -> str:
        words = [_spell(a) for a in self.args] + [f"{k}={_spell(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(words)})"

    def draw(self, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with tensors in place of their `Fill`s."""
        made = _map(self.args, lambda fill: fill.make(generator)), _map(self.kwargs, lambda fill: fill.make(generator))
        return made[0], made[1]


def _spell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_spell, value))}]"
    return str(value)


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, Fill):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return value


def tensors_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call, in the order of the op's schema (which is that of the `Op`'s operands)."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        found.extend(v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor))
    return found


def replace_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The arguments of a call with other tensors, taken in order."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, (list, tuple)):
        return type(value)(replace_tensors(v, tensors) for v in value)
    if isinstance(value, dict):
        return {k: replace_tensors(v, tensors) for k, v in value.items()}
    return value


def one_op(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Op:
    """The `Op` that a call becomes in an imported graph. Raises RuleError if it becomes another op, or several."""
    from torch._subclasses import FakeTensorMode

    target = overload(name)
    graph = torch.fx.Graph()
    with FakeTensorMode() as mode:

        def put(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                node = graph.placeholder(f"x{len(graph.nodes)}")
                node.meta["val"] = mode.from_tensor(value)
                return node
            return [put(v) for v in value] if isinstance(value, (list, tuple)) else value

        put_args, put_kwargs = tuple(put(a) for a in args), {k: put(v) for k, v in kwargs.items()}
        fakes = iter([node.meta["val"] for node in graph.nodes])
        node = graph.call_function(target, put_args, put_kwargs)
        node.meta["val"] = result = target(*replace_tensors(args, fakes), **replace_tensors(kwargs, fakes))
        parts = [node]
        if isinstance(result, (list, tuple)):
            parts = [graph.call_function(operator.getitem, (node, i)) for i in range(len(result))]
            for part, value in zip(parts, result, strict=True):
                part.meta["val"] = value
        graph.output(tuple(parts))
    nodes = import_graph(graph).graph.nodes
    if [n.op.name for n in nodes] != [name]:
        raise RuleError(f"a call of {name} is imported as {[n.op.name for n in nodes]}", help="sample that op instead")
    return nodes[0].op
