"""Closed graphs through `torch._inductor`, as bytes: for one size of inputs, or for many."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from unittest import mock

import torch
from torch import fx

from samite.errors import UnsupportedOp
from samite.hal.program import Program
from samite.ir.adam import adam, adam_reference, amsgrad
from samite.ir.graph import overload
from samite.ir.regions import is_control_flow
from samite.ir.sgd import sgd, sgd_momentum, sgd_momentum_reference, sgd_reference
from samite.lowering import Sizes
from samite_cpu.closing import Closed

__all__ = ["Conditions", "compile_for_many_sizes", "compile_for_one_size", "load"]


@dataclass(frozen=True)
class Conditions:
    """For which sizes kernels hold: `symbols` have one for each size, `guards` are expressions over them."""

    symbols: tuple[Any, ...]
    guards: tuple[Any, ...]

    def hold(self, values: Sequence[int]) -> bool:
        import sympy

        if min(values) < 2:
            return False
        given = {symbol: sympy.Integer(value) for symbol, value in zip(self.symbols, values, strict=True)}
        return all(guard.xreplace(given) == sympy.true for guard in self.guards)


@cache
def _know_updates() -> None:
    """Tell Inductor what optimizer updates are: it fuses their arithmetic, and writes new state where it belongs."""
    from torch._inductor.decomposition import register_decomposition

    register_decomposition([adam, amsgrad])(adam_reference)
    register_decomposition([sgd])(sgd_reference)
    register_decomposition([sgd_momentum])(sgd_momentum_reference)


@contextmanager
def _control_flow_kept() -> Iterator[None]:
    """Let Inductor keep graphs with ops of control flow: its keys cover the modules that these call, but the ops say of
    themselves that they cannot be kept."""
    plain = torch._ops.HigherOrderOperator.cacheable

    def cacheable(op: torch._ops.HigherOrderOperator) -> bool:
        return is_control_flow(op) or plain(op)

    with mock.patch.object(torch._ops.HigherOrderOperator, "cacheable", cacheable):
        yield


def compile_for_one_size(module: fx.GraphModule, closed: Closed, program: Program) -> bytes:
    """Raises UnsupportedOp if the result cannot be kept."""
    import torch._inductor as inductor

    _know_updates()
    shapes = [argument.layout.local_shape(program.mesh) for argument in program.arguments]
    examples = _examples(program, closed, shapes, ())
    with _control_flow_kept():
        compiled = inductor.standalone_compile(module, examples, dynamic_shapes="from_example_inputs")
    return _kept(compiled, program)


def compile_for_many_sizes(
    module: fx.GraphModule, closed: Closed, program: Program, sizes: Sizes
) -> tuple[bytes, Conditions]:
    """With a symbol for each of `sizes`, at those of `program`; and for which they hold."""
    import torch._inductor as inductor
    from torch._dynamo.source import ConstantSource
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    _know_updates()
    env = ShapeEnv(duck_shape=False)
    symbols: list[Any] = []
    named: list[Any] = []
    for column, value in enumerate(sizes.values(program.numbers) or ()):
        source = ConstantSource(f"size{column}")
        symbols.append(env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC))
        named.append(env.create_symintnode(symbols[-1], hint=value, source=source))
    dims = [n if c < 0 else named[c] for n, c in zip(sizes.numbers, sizes.columns, strict=True)]
    ranks = [len(argument.layout.local_shape(program.mesh)) for argument in program.arguments]
    tail = iter(dims[len(dims) - sum(ranks) :])  # the arguments' shapes
    shapes = [[next(tail) for _ in range(rank)] for rank in ranks]
    mode = FakeTensorMode(shape_env=env)
    with mode:
        examples = _examples(program, closed, shapes, named)
    with tracing(TracingContext(mode)), _control_flow_kept():
        compiled = inductor.standalone_compile(module, examples, dynamic_shapes="from_tracing_context")
    return _kept(compiled, program), Conditions(tuple(symbols), tuple(guard.expr for guard in env.guards))


@lru_cache(maxsize=16)
def load(artifact: bytes) -> Callable[..., Any]:
    """What was compiled, as a function; programs that share it share that."""
    from torch._inductor import CompiledArtifact

    overload("samite.sdpa")  # defines Samite's ops, which compiled code calls by name
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "artifact")
        with open(path, "wb") as file:
            file.write(artifact)
        return CompiledArtifact.load(path=path, format="binary")


def _kept(compiled: Any, program: Program) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "artifact")
        try:
            compiled.save(path=path, format="binary")
        except RuntimeError as error:
            raise UnsupportedOp(
                f'Inductor cannot keep what it made of "{program.name}": {error}', help='use mode="aten"'
            ) from error
        with open(path, "rb") as file:
            return file.read()


def _examples(program: Program, closed: Closed, shapes: Sequence[Sequence[Any]], sizes: Sequence[Any]) -> list[Any]:
    """A value for each input of the closed graph. Under a fake mode all are fakes."""
    arguments = [
        torch.zeros(shape, dtype=getattr(torch, argument.dtype))
        for shape, argument in zip(shapes, program.arguments, strict=True)
    ]
    state = [x for x, argument in zip(arguments, program.arguments, strict=True) if argument.kind == "state"]
    indices = [torch.zeros((), dtype=torch.int64) for _ in (*closed.places, *closed.lengths)]
    literals = [torch.zeros(x.shape, dtype=x.dtype) for x in closed.literals]
    return [*arguments, *sizes, *indices, *literals, *(torch.zeros_like(state[index]) for index in closed.replaced)]
