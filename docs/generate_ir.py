"""Writes the generated sections of ir.md from the code: `python docs/generate_ir.py`. A test compares them.

A section stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch_mlir.dialects.ext import AttributeDef

import samite
from samite import Shard
from samite.frontend import capture
from samite.ir.build import rewrite
from samite.ir.dialect import dist_dialect
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.passes.pipeline import default_passes
from samite.topology import Topology

PAGE = Path(__file__).with_name("ir.md")
SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

collective = torch.ops.samite
my_ops = torch.library.Library("my_ops", "FRAGMENT")
my_ops.define("double(Tensor x) -> Tensor")
my_ops.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")


class Affine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def examples() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """What is shown, as a user writes it, and a function of x that does it."""
    yield "call_function", "x @ x.t()", lambda x: x @ x.t()
    yield "call_function with defaults", "torch.softmax(x, -1)", lambda x: torch.softmax(x, -1)
    yield "call_function with a scalar", "x + 1", lambda x: x + 1
    yield "call_method", "x.relu()", fx.symbolic_trace(lambda x: x.relu())
    yield "call_module", "self.norm(x)", fx.symbolic_trace(torch.nn.Sequential(torch.nn.LayerNorm(4, bias=False)))
    yield "number", "x.clamp(min=0.5)", lambda x: x.clamp(min=0.5)
    yield "string", 'F.gelu(x, approximate="tanh")', lambda x: F.gelu(x, approximate="tanh")
    yield "dtype", "x.to(torch.bfloat16)", lambda x: x.to(torch.bfloat16)
    yield "list of ints", "x.sum((0, 1))", lambda x: x.sum((0, 1))
    yield "list of tensors", "torch.cat([x, x])", lambda x: torch.cat([x, x])
    yield "several results", "x.max(1)", lambda x: tuple(x.max(1))
    yield "list of results", "x.split(2, 1)", lambda x: x.split(2, 1)
    yield "get_attr: parameter, buffer", "x * self.scale + self.shift", fx.symbolic_trace(Affine())
    yield "get_attr: constant", "x + torch.tensor([1, 2, 3, 4])", lambda x: x + torch.tensor([1, 2, 3, 4])
    yield "custom op", "torch.ops.my_ops.double(x)", lambda x: torch.ops.my_ops.double(x)
    yield "attention", "F.scaled_dot_product_attention(x, x, x)", lambda x: F.scaled_dot_product_attention(x, x, x)
    yield "random op", "torch.rand_like(x)", lambda x: torch.rand_like(x)
    yield "collective", 'torch.ops.samite.all_reduce(x, "dp", "sum")', lambda x: collective.all_reduce(x, "dp", "sum")
    yield "place on the mesh", 'torch.ops.samite.axis_index("dp")', lambda x: collective.axis_index("dp")


def correspondence() -> Iterator[str]:
    yield "| | Python | captured FX | MLIR |"
    yield "| --- | --- | --- | --- |"
    for what, written, function in examples():
        x = torch.zeros((1, 1, 2, 4) if what == "attention" else (2, 4))
        captured = capture(function, (x,))
        names = [(a.name, a.owner) for a in captured.arguments]
        module = import_graph(captured.graph.graph, names, mesh=samite.mesh("cpu", dp=2))
        module = rewrite(module, lambda graph, build: build.inline_all(graph))  # every constant once
        nodes = (n for n in captured.graph.graph.nodes if n.op not in ("placeholder", "output"))
        yield f"| {what} | {cell([written])} | {cell(map(spelled, nodes))} | {cell(body(module))} |"


def spelled(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"{node.name} = get_attr {node.target}"
    words = [*map(repr, node.args), *(f"{key}={value!r}" for key, value in node.kwargs.items())]
    name = "getitem" if node.target is operator.getitem else str(node.target)
    return f"{node.name} = {name}({', '.join(words)})"


def body(module: Module) -> Iterator[str]:
    """The function's ops, without their types."""
    for line in module.text(locations=False).splitlines():
        if line.strip().startswith("%"):
            yield re.split(r" : (?=[(!])", line.strip())[0]


def cell(lines: Iterable[str]) -> str:
    return "<br>".join(f"`{line}`" for line in lines).replace("|", "\\|")


MEANING = {
    "constrain": "the value; a wish that it be laid out so, kept until `place`",
    "reshard": "the value, laid out as `dst` instead of `src`; gone after `partition`",
    "all_reduce": "the reduction of the peers' tensors, on every peer; `auto` and 0 are not chosen yet",
    "all_gather": "the peers' tensors joined along `dim`, on every peer",
    "reduce_scatter": "this rank's part along `dim` of the reduction of the peers' tensors",
    "all_to_all": "what the peers send, joined along `concat_dim`: each sends part j along `split_dim` to peer j",
    "permute": "what the source of a (source, target) sends to this rank; zeros if it is no target",
    "shard": "this rank's part along `dim`, local",
    "axis_index": "this rank's place along the axes, a 0-d int64, local",
    "valid_length": "what is no padding in this rank's chunk of `size` elements, cut by one axis after the other, a "
    "0-d int64, local",
    "start": "what the collective gives, still in flight; `token` numbers it, `wait_on` are tokens that must have "
    "arrived before, what shares a `barrier_id` arrives together",
    "wait": "what has arrived of a `dist.start`",
    "transfer": "the value, on a device of kind `target`",
    "cond": "what region `then` makes of the inputs if the predicate is true, else what `otherwise` makes of them",
    "while": "the first `carried` inputs after `body` was applied to all inputs for as long as `condition` holds",
    "scan": "the first `carried` inputs after `body` was applied to each slice of the next `sliced` along dim 0; then "
    "what else it gave, stacked",
    "yield": "ends a region",
}


def dialect() -> Iterator[str]:
    yield "| op | attributes | result | in torch |"
    yield "| --- | --- | --- | --- |"
    for made in dist_dialect().operations:
        if name := getattr(made, "_op_name", "").removeprefix("dist."):
            attributes = [field.name for field in made._fields if isinstance(field, AttributeDef)]
            spelling = getattr(collective, name, None)
            schema = str(spelling.default._schema).removeprefix("samite::") if spelling is not None else ""
            yield f"| `dist.{name}` | {cell(attributes)} | {MEANING[name]} | {cell([schema] if schema else [])} |"


def passes() -> Iterator[str]:
    yield "| pass | what it does |"
    yield "| --- | --- |"
    for made in default_passes({}, {}, 1, overlap=True, topology=Topology()):
        summary = (sys.modules[type(made).__module__].__doc__ or "").split("\n\n")[0]
        yield f"| `{made.name}` | {' '.join(summary.partition(': ')[2].split())} |"


def perceptron(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (torch.relu(x @ up) @ down).square().sum()


def regions() -> Iterator[str]:
    captured = capture(lambda x: torch.cond(x.sum() > 0, torch.relu, lambda y: y * 2, (x,)), (torch.zeros(8, 4),))
    yield "```mlir"
    yield import_graph(captured.graph.graph, mesh=samite.mesh("cpu", dp=2)).text(locations=False).rstrip()
    yield "```"


def example() -> Iterator[str]:
    mesh = samite.mesh("cpu", dp=2, tp=2)
    captured = capture(perceptron, (torch.zeros(8, 4), torch.zeros(4, 16), torch.zeros(16, 4)))
    module = import_graph(captured.graph.graph, [(a.name, "") for a in captured.arguments], mesh=mesh)
    yield from shown("import", module)
    for step in default_passes({"x": {"dp": Shard(0)}, "up": {"tp": Shard(1)}}, {}, 1):
        module = step.run(module)
        if step.name in ("place", "partition"):
            yield from shown(f"`{step.name}`", module)


def shown(after: str, module: Module) -> Iterator[str]:
    yield from (f"After {after}:", "", "```mlir", module.text(locations=False).rstrip(), "```", "")


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "correspondence": correspondence,
    "dialect": dialect,
    "regions": regions,
    "passes": passes,
    "example": example,
}


def regenerated(page: str) -> str:
    return SECTION.sub(lambda m: m[1] + "\n".join(SECTIONS[m[2]]()).rstrip() + "\n" + m[3], page)


if __name__ == "__main__":
    PAGE.write_text(regenerated(PAGE.read_text()))
