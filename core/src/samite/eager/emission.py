"""A placed call as the source of a Python function of one rank: local tensors out, the local program, results in.

def main(args, kwargs):
    a0, a1, = args
    arg0 = a0._local
    arg1 = a1._local
    x0 = kernel(arg0, arg1)
    r0 = wrap(Tensor, size_0, dtype=dtype_0)
    r0._local = x0; r0._spec = spec_0
    return r0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samite.eager.calls import Call, Leaf, facts
from samite.eager.kernels import kernel
from samite.eager.local import LocalProgram, RankHome
from samite.eager.placing import Placed
from samite.eager.spec import Home, Spec, spec
from samite.eager.tracing import ResultType
from samite.layout import Layout

__all__ = ["Loosen", "Plan", "emit", "emit_reshard", "result_specs"]

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""What carries out all calls of one key."""
Loosen = Callable[[Any, int, tuple[Any, ...], dict[str, Any]], None]
"""(result, its number, args, kwargs) of a call that gives a view with memory of its own."""


def result_specs(call: Call, placed: Placed, home: Home, bases: list[Spec | None]) -> list[Spec | None]:
    """The specs of the results, None of one that is a leaf or is left out. `bases` are those of the leaves."""
    base = bases[0] if facts(call.func).views else None
    offset = base.offset if base is not None else 0
    layouts = iter(placed.layouts)
    return [
        spec(home, next(layouts), getattr(torch, r.type.dtype), r.stride, offset + r.offset)
        if isinstance(r, ResultType)
        else None
        for r in placed.results
    ]


def emit(call: Call, placed: Placed, specs: list[Spec | None], kind: type[Any], home: RankHome, loosen: Loosen) -> Any:
    """The plan of `call` on this rank. Its `direct` tells that it depends on no float of the call, `specs` are those of
    its results."""
    return _Emitter(call, placed, specs, kind, home, loosen).emit()


def emit_reshard(home: RankHome, have: Spec, layout: Layout) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes this rank's shard of a value to its shard under another layout."""
    from samite.passes.fragments import reshard_graph

    mesh = home.mesh
    graph = reshard_graph(have.layout, layout.canonical(mesh), have.type.dtype, tuple(mesh.items()))
    program = LocalProgram.of_graph(graph, mesh, "reshard")
    return program.bind(["def main(arg0):", *program.statements, f"return {program.values[0]}"], home, {})


class _Emitter:
    def __init__(
        self, call: Call, placed: Placed, specs: list[Spec | None], kind: type[Any], home: RankHome, loosen: Loosen
    ) -> None:
        self.call, self.placed, self.specs, self.home = call, placed, specs, home
        self.views = facts(call.func).views
        self.program = placed.local
        self.names: dict[str, Any] = {"wrap": torch.Tensor._make_wrapper_subclass, "Tensor": kind, "loosen": loosen}

    def emit(self) -> Any:
        if not (self.views and self.program.regroups):
            return self._main()
        # Memory need not allow the view, as the layout does: then it is a copy, and says so.
        self.names["copying"] = self._main()
        return self._main(copying=False)

    def _main(self, *, copying: bool = True) -> Any:
        direct = self._runs_as_called()
        body, values = self._direct() if direct else (list(self.program.statements), list(self.program.values))
        if not copying:
            tried = [f"    {line}" for line in body]
            body = ["try:", *tried, "except RuntimeError:", "    return copying(args, kwargs)"]
        count = sum(isinstance(r, ResultType) for r in self.placed.results)
        lines = ["def main(args, kwargs):", *self._operands(), *body, *self._writes(values[count:])]
        looking = [v and not (copying and self.program.regroups) for v in self.program.views]
        lines += self._results(values[:count], [False] * count if direct else looking)
        main: Any = self.program.bind(lines, self.home, self.names, copying=copying)
        main.direct, main.specs = direct, self.specs
        return main

    # ---- in --------------------------------------------------------------------------------------

    def _operands(self) -> Iterator[str]:
        if self.call.args:
            yield f"{''.join(f'a{i}, ' for i in range(len(self.call.args)))}= args"
        for index, leaf in enumerate(self.call.leaves):
            yield f"arg{index} = {_path(leaf)}{'' if leaf.layout is None else '._local'}"

    # ---- the work --------------------------------------------------------------------------------

    def _runs_as_called(self) -> bool:
        """Whether the rank does on its shards what the call says of the whole: then numbers need not be written out."""
        if self._is_replicated():
            return True
        local, whole = self.program.nodes.nodes, self.placed.module.graph.nodes
        if not self.placed.direct or self.views or len(local) != 1 or len(whole) != 1 or not self.call.leaves:
            return False
        return (local[0].op.name, local[0].op.form) == (whole[0].op.name, whole[0].op.form)

    def _is_replicated(self) -> bool:
        """Whether every rank has all that an op takes and gives: then it is not even taken apart. What is left to
        memory's content is, since that is each rank's own."""
        func = self.call.func
        if self.views or not self.call.leaves or not isinstance(func, torch._ops.OpOverload) or "empty" in str(func):
            return False
        layouts = [*(leaf.layout for leaf in self.call.leaves), *self.placed.layouts]
        return all(layout is None or layout.is_replicated for layout in layouts)

    def _direct(self) -> tuple[list[str], list[str]]:
        """The called op itself on local tensors."""
        leaves = iter(range(len(self.call.leaves)))
        words = [self._word(value, f"a{i}", leaves) for i, value in enumerate(self.call.args)]
        words += [f"{key}={self._word(value, f'kwargs[{key!r}]', leaves)}" for key, value in self.call.kwargs.items()]
        self.names["kernel"] = kernel(self.call.func)
        call = f"kernel({', '.join(words)})"
        if any(leaf.written for leaf in self.call.leaves):
            return [call], []
        if self.placed.traced.shape == "one":
            return [f"x0 = {call}"], ["x0"]
        made = [f"x{i}" for i in range(len(self.placed.results))]
        return [f"{', '.join(made)} = {call}"], [x for x, known in zip(made, self.specs, strict=True) if known]

    def _word(self, value: Any, given: str, leaves: Iterator[int]) -> str:
        if isinstance(value, Leaf):
            return f"arg{next(leaves)}"
        if isinstance(value, list) and any(isinstance(item, Leaf) for item in value):
            items = (f"arg{next(leaves)}" if isinstance(x, Leaf) else f"{given}[{i}]" for i, x in enumerate(value))
            return f"[{', '.join(items)}]"
        return given

    # ---- out -------------------------------------------------------------------------------------

    def _writes(self, values: list[str]) -> Iterator[str]:
        for index, value in zip(self.placed.traced.written, values, strict=False):
            yield f"{_path(self.call.leaves[index])}._local.copy_({value})"

    def _results(self, values: list[str], looking: list[bool]) -> Iterator[str]:
        """`looking` tells of each value whether it is a view of an operand."""
        names: list[str] = []
        given = iter(zip(values, looking, strict=False))
        for index, (result, made) in enumerate(zip(self.placed.results, self.specs, strict=True)):
            if isinstance(result, int):
                names.append(_path(self.call.leaves[result]))
            elif made is None:
                names.append("None")
            else:
                yield from self._result(index, *next(given), made)
                names.append(f"r{index}")
        how = {"one": "{}", "list": "[{}]", "tuple": "({},)", "none": "None"}[self.placed.traced.shape]
        yield f"return {how.format(', '.join(names))}"

    def _result(self, index: int, value: str, looking: bool, made: Spec) -> Iterator[str]:
        if looking and not self.views and str(self.call.func) not in _MAY_SHARE:
            yield f"{value} = {value}.clone()"  # a new tensor has memory of its own
        loose = self.views and not looking
        self.names |= {
            f"size_{index}": torch.Size(made.shape),
            f"dtype_{index}": made.dtype,
            f"spec_{index}": made.loosened if loose else made,
        }
        geometry = "" if made.contiguous else f", {made.stride}, {made.offset}"
        device = "" if self.home.mesh.backends[0] == "cpu" else f", device={value}.device"
        yield f"r{index} = wrap(Tensor, size_{index}{geometry}, dtype=dtype_{index}{device})"
        yield f"r{index}._local = {value}; r{index}._spec = spec_{index}"
        if loose:
            yield f"loosen(r{index}, {index}, args, kwargs)"


_MAY_SHARE = ("aten._unsafe_view.default", "aten._reshape_alias.default", "aten.lift_fresh.default")
"""Ops of whose results torch promises nothing."""


def _path(leaf: Leaf) -> str:
    first, *rest = leaf.place
    whole = f"a{first}" if isinstance(first, int) else f"kwargs[{first!r}]"
    return whole + "".join(f"[{index}]" for index in rest)
