"""Random programs: inputs, lines of Python, a mesh, and where the inputs lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from samite.testing.fuzz.families import FAMILIES
from samite.testing.fuzz.pool import LARGEST, Pool, Unfit, Value

__all__ = ["Program", "programs"]

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 0, 12, 13])
SHAPES = st.lists(SIZES, max_size=4).map(tuple).filter(lambda shape: prod(shape) <= LARGEST)
BOUND = 1e5
"""Values stay below, so that sums of whole numbers are exact and no result overflows."""


@dataclass(frozen=True)
class Program:
    """`shapes` are those of the inputs x0, x1, …, `lines` are assignments to v0, v1, …; it returns `results` and the
    gradients of all inputs. `placements` are (axis, dim) for each input."""

    shapes: tuple[tuple[int, ...], ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    placements: tuple[tuple[tuple[str, int], ...], ...]

    @property
    def source(self) -> str:
        """The program as a function, the way a user would write it."""
        names = [f"x{i}" for i in range(len(self.shapes))]
        terms = [f"({r} * torch.arange(1, 1 + {r}.numel()).view({r}.shape)).sum()" for r in self.results]
        loss = " + ".join([*terms, "0 * x0.sum()"])  # which learns, whatever the results do
        body = [
            *self.lines,
            f"loss = {loss}",
            f"grads = torch.autograd.grad(loss, [{', '.join(names)}], allow_unused=True)",
        ]
        body.append(f"return ({', '.join(self.results)}, *grads)")
        return "\n".join([f"def program({', '.join(names)}):", *(f"    {line}" for line in body)])

    @property
    def script(self) -> str:
        """All of it, as a script that runs by itself."""
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh)
        placed = ", ".join(
            f'"x{i}": {{{", ".join(f"{chr(34)}{axis}{chr(34)}: Shard({dim})" for axis, dim in each)}}}'
            for i, each in enumerate(self.placements)
            if each
        )
        return f"""import samite, torch
import torch.nn.functional as F
from samite import Shard

{self.source}

generator = torch.Generator().manual_seed(0)
shapes = {[list(shape) for shape in self.shapes]}
inputs = [torch.randint(-4, 5, shape, generator=generator).double().requires_grad_() for shape in shapes]
print(program(*inputs))
mesh = samite.mesh("cpu", engine="lockstep", {axes})
print(samite.compile(program, mesh=mesh, placements={{{placed}}})(*inputs))
"""

    def inputs(self) -> list[Tensor]:
        """Whole numbers, new at every call, always the same."""
        generator = torch.Generator().manual_seed(0)
        return [torch.randint(-4, 5, shape, generator=generator).double().requires_grad_() for shape in self.shapes]

    def function(self) -> Callable[..., tuple[Any, ...]]:
        namespace: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, "<fuzz>", "exec"), namespace)
        return namespace["program"]


@st.composite
def programs(draw: Any, least: int = 5, most: int = 40) -> Program:
    """Programs of `least` to `most` ops over float64 inputs of whole numbers, on meshes to 4 axes and 24 ranks."""
    pool = Pool(draw)
    shapes = tuple(draw(st.lists(SHAPES, min_size=1, max_size=3)))
    inputs = Program(shapes, (), (), (), ()).inputs()
    pool.values += [Value(f"x{i}", x.detach(), exact=True) for i, x in enumerate(inputs)]
    lines: list[str] = []
    for _ in range(draw(st.integers(least, most))):
        family = draw(st.sampled_from(FAMILIES))
        try:
            expression = family.draw(pool)
        except Unfit:
            continue
        made = _evaluate(expression, pool)
        if made is not None:
            name = f"v{len(lines)}"
            lines.append(f"{name} = {expression}")
            used = [value for value in pool.values if _uses(expression, value.name)]
            pool.values.append(Value(name, made, family.keeps and all(value.exact for value in used)))
    made = [value for value in pool.values if value.name.startswith("v")] or pool.values
    results = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    mesh = draw(meshes())
    placements = tuple(draw(_placement(x, mesh)) for x in inputs)
    return Program(shapes, tuple(lines), tuple(r.name for r in results), mesh, placements)


@st.composite
def meshes(draw: Any) -> tuple[tuple[str, int], ...]:
    sizes = draw(st.lists(st.sampled_from([2, 3, 1, 4]), min_size=1, max_size=4).filter(lambda s: prod(s) <= 24))
    return tuple(zip("abcd", sizes, strict=False))


def _placement(x: Tensor, mesh: tuple[tuple[str, int], ...]) -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
    """For each axis: nothing, or the dim of `x` that it splits."""
    if not x.ndim:
        return st.just(())
    choices = [st.sampled_from([*((axis, dim) for dim in range(x.ndim)), None]) for axis, _ in mesh]
    return st.tuples(*choices).map(lambda chosen: tuple(each for each in chosen if each is not None))


def _evaluate(expression: str, pool: Pool) -> Tensor | None:
    """The value of an expression, if torch takes it and it is one to go on with: finite, not too large."""
    names: dict[str, Any] = {value.name: value.tensor for value in pool.values}
    try:
        made = eval(expression, {"torch": torch, "F": F}, names)
    except (RuntimeError, IndexError):
        return None
    small = made.numel() <= LARGEST and made.dim() <= 6
    return made if small and bool((made.abs() < BOUND).all()) else None


def _uses(expression: str, name: str) -> bool:
    namespace = compile(expression, "<fuzz>", "eval").co_names
    return name in namespace
