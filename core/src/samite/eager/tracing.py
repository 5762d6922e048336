"""Tracing one call on fake tensors: what its results are, and what it computes as functional core ops.

The same decompositions, functionalisation and tidying as a capture's, so that a call means what it means there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from samite.eager.calls import Call
from samite.errors import InputError
from samite.ir.context import TensorType
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.runtime.sharding import dtype_name

__all__ = ["ResultType", "Traced", "aside", "trace_call"]

_lock = threading.RLock()
"""One trace at a time: tracing patches torch for the process."""
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()


@contextmanager
def aside() -> Iterator[None]:
    """Torch as if no op were being dispatched. Within an op its lower half alone is there, and no transform works."""
    guard: Any = torch._C._ForceDispatchKeyGuard
    with _lock, guard(_INCLUDED, _EXCLUDED), torch.inference_mode(False), torch.no_grad():
        yield


@dataclass(frozen=True)
class ResultType:
    """A result as torch would have it on one device; `offset` counts from the start of the operand's memory."""

    type: TensorType
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Traced:
    """`module` takes the call's leaves in order and gives its new `results`, then what the written leaves hold
    afterwards. A result may also be None (left out) or the number of the leaf that it is. `shape` tells how results are
    put together: "one", "list", "tuple" or "none"."""

    module: Module
    results: tuple[ResultType | int | None, ...]
    written: tuple[int, ...]
    shape: str


def trace_call(call: Call, mesh: Mesh) -> Traced:
    """Raises what torch raises for a call that is wrong, InputError for one whose result's shape depends on data."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
        UnsupportedOperatorException,
    )
    from torch.fx.experimental.proxy_tensor import make_fx

    from samite.eager.decompositions import more
    from samite.eager.graphs import graph_of_op
    from samite.frontend.decompositions import table
    from samite.frontend.functionalizing import functionalize
    from samite.frontend.tidying import tidy
    from samite.ir.importer import import_graph

    written = tuple(i for i, leaf in enumerate(call.leaves) if leaf.written)

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, _ = _flatten(call.run(tensors))
        new = (x for x, result in zip(found, results, strict=True) if isinstance(result, ResultType))
        return (*cast("Iterator[torch.Tensor]", new), *(tensors[i] for i in written))

    with aside():
        try:
            with FakeTensorMode() as mode:
                fakes = _fakes(call, mode)
                made, shape = _flatten(call.run(fakes))
            results = tuple(_result(x, fakes) for x in made)
            _check_written(call, fakes)
            decompositions = {**table(), **more()}
            graph = graph_of_op(call, fakes, made, decompositions)
            if graph is None:
                fakes = _fakes(call, FakeTensorMode())
                graph = make_fx(flat, tracing_mode="fake", decomposition_table=decompositions)(*fakes)
                graph = functionalize(graph, fakes)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise InputError(
                f"{call.func}: what it gives depends on data, so no layout can be told beforehand",
                help="call it on the whole value: x.full_tensor()",
            ) from error
        except UnsupportedOperatorException as error:
            raise InputError(
                f"{call.func}: torch cannot tell what it gives without data", help="call it on x.full_tensor()"
            ) from error
        tidy(graph)
        names = [(f"a{i}", "") for i in range(len(call.leaves))]
        return Traced(import_graph(graph.graph, arguments=names, mesh=mesh), results, written, shape)


def _fakes(call: Call, mode: Any) -> tuple[torch.Tensor, ...]:
    with mode:
        return tuple(
            torch.empty_strided(leaf.type.shape, leaf.stride, dtype=getattr(torch, leaf.type.dtype))
            for leaf in call.leaves
        )


def _flatten(made: Any) -> tuple[list[torch.Tensor | None], str]:
    if made is None:
        return [], "none"
    if isinstance(made, torch.Tensor):
        return [made], "one"
    for item in made:
        if item is not None and not isinstance(item, torch.Tensor):
            raise InputError(f"an op that gives a {type(item).__name__}", help="call it on x.full_tensor()")
    return list(made), "tuple" if isinstance(made, tuple) else "list"


def _result(x: torch.Tensor | None, leaves: tuple[torch.Tensor, ...]) -> ResultType | int | None:
    if x is None:
        return None
    if (same := next((i for i, leaf in enumerate(leaves) if x is leaf), None)) is not None:
        return same
    return ResultType(TensorType(tuple(x.shape), dtype_name(x.dtype)), tuple(x.stride()), int(x.storage_offset()))


def _check_written(call: Call, fakes: tuple[torch.Tensor, ...]) -> None:
    for leaf, fake in zip(call.leaves, fakes, strict=True):
        if leaf.written and tuple(fake.shape) != leaf.type.shape:
            raise InputError(
                f"{call.func} would change the shape of a distributed tensor in place",
                help="use the op that gives a new tensor",
            )
