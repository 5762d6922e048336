"""Carrying out what a rank of a pipeline does: its store of values, and how microbatches' terms are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from samite.hal.driver import InFlight
from samite.hal.program import Pipeline
from samite.runtime.joint import REDUCE
from samite.runtime.pipelines import ALL, Complete, Deed, Key, Receive, Run, Send
from samite.schedules.flow import INDEX, Join

__all__ = ["Site", "Turning"]

Each = Callable[..., Any]


class Site(Protocol):
    """Where deeds are done: one rank, or the simulated ranks of one index together. A value is one rank's tensor, or a
    list of all of theirs."""

    def on_each(self, function: Each, *values: Any) -> Any:
        """A function of tensors, on each rank's."""
        ...

    def call(self, program: int, arguments: Sequence[Any]) -> Sequence[Any]:
        """The results of one of the pipeline's programs."""
        ...

    def send(self, key: Key, value: Any, target: int) -> None: ...
    def receive(self, deed: Receive) -> InFlight: ...


class Turning:
    """One step. `given` are the values of the pipeline's arguments that this site holds."""

    def __init__(self, pipeline: Pipeline, site: Site, given: dict[int, Any]) -> None:
        self.pipeline, self.site = pipeline, site
        self._store: dict[Key, Any] = {Key(value, ALL): tensor for value, tensor in given.items()}
        self._arriving: dict[Key, InFlight] = {}
        self._terms: dict[int, list[Any]] = {}
        self._owned = set[int]()  # joins whose first term is memory of their own
        self._numbers = [torch.tensor(at) for at in range(pipeline.microbatches)]

    def take(self, deed: Deed) -> None:
        """Do one deed."""
        if isinstance(deed, Run):
            self._run(deed)
        elif isinstance(deed, Send):
            self.site.send(deed.key, self.value(deed.key), deed.target)
        elif isinstance(deed, Receive):
            self._arriving[deed.key] = self.site.receive(deed)
        else:
            self._complete(deed)
        for key in deed.lets_go:
            self._store.pop(key, None)

    def value(self, key: Key) -> Any:
        """A value that is there, or on its way."""
        if key.value == INDEX:
            return self.site.on_each(lambda: self._numbers[key.microbatch])
        if key in self._arriving:
            self._store[key] = self._arriving.pop(key).wait()
        return self._store[key]

    def _run(self, run: Run) -> None:
        ports = self.pipeline.programs[run.program].reads
        columns = zip(run.reads, ports, strict=True)
        arguments = [self._part(self.value(key), port.cut, run.microbatch) for key, port in columns]
        made = self.site.call(run.program, arguments)
        self._store.update(zip(run.makes, made, strict=True))
        for join in run.terms:
            self._add(join, self._store[Key(join.term, run.microbatch)])

    def _part(self, value: Any, dim: int, microbatch: int) -> Any:
        if dim < 0:
            return value
        count = self.pipeline.microbatches

        def part(x: torch.Tensor) -> torch.Tensor:
            length = x.shape[dim] // count
            return x.narrow(dim, microbatch * length, length).contiguous()

        return self.site.on_each(part, value)

    def _add(self, join: Join, term: Any) -> None:
        """In the order of the microbatches, which every schedule keeps: so all of them give the same bits."""
        terms = self._terms.setdefault(join.value, [])
        if join.kind not in REDUCE or not terms:
            terms.append(self.site.on_each(_wide, term) if join.kind == "sum" else term)
            return
        reduce = REDUCE[join.kind]
        if join.value in self._owned:
            self.site.on_each(lambda a, b: reduce(a, b.to(a.dtype), out=a), terms[0], term)
        else:  # the first term is another's too
            terms[0] = self.site.on_each(lambda a, b: reduce(a, b.to(a.dtype)), terms[0], term)
            self._owned.add(join.value)

    def _complete(self, deed: Complete) -> None:
        join = deed.join
        terms = self._terms.pop(join.value)
        if join.kind == "cat":
            whole = self.site.on_each(lambda *xs: torch.cat(xs, join.dim), *terms)
        else:
            [whole] = terms
        if join.kind == "sum":
            whole = self.site.on_each(lambda x: x.to(self._dtype(join)), whole)
        self._store[Key(join.value, ALL)] = whole

    def _dtype(self, join: Join) -> torch.dtype:
        for program in self.pipeline.programs:
            if join.term in program.makes:
                return getattr(torch, program.program.results[program.makes.index(join.term)].dtype)
        raise AssertionError("some program makes every term")


def _wide(x: torch.Tensor) -> torch.Tensor:
    """What sums of many terms are held in."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
