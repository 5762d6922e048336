"""Pipelines in lockstep: the ranks of each stage together, the stages in turns, as far as each gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.errors import WorkerError
from samite.hal.driver import Arrived, InFlight
from samite.hal.program import Program
from samite.lowering import to_fx
from samite.mesh import Mesh
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.pipelines import ALL, Deed, Deeds, Key, Receive
from samite.runtime.turning import Turning

__all__ = ["LockstepPipeline"]

Locals = list[torch.Tensor]
"""Of the ranks of one index on the pipeline's axis."""


class LockstepPipeline:
    """A program of a pipeline, for all ranks of its mesh."""

    def __init__(self, program: Program) -> None:
        assert program.pipeline is not None, "of a pipeline"
        self._program, self._pipeline = program, program.pipeline
        mesh, axis = program.mesh, self._pipeline.axis
        inner = {name: size for name, size in mesh.items() if name != axis}
        self._inner = Mesh(tuple(inner), tuple(inner.values()), mesh.backends, mesh.engine)
        self._deeds = Deeds(self._pipeline, mesh[axis])
        at = [mesh.coordinates(rank)[axis] for rank in range(mesh.size)]
        self._ranks = [[rank for rank, index in enumerate(at) if index == k] for k in range(mesh[axis])]
        self._calls = [self._callable(number) for number in range(len(self._pipeline.programs))]

    def _callable(self, number: int) -> Callable[[Sequence[Locals]], list[Locals]]:
        part = self._pipeline.programs[number]
        code = generate(to_fx(part.program), part.program.name)
        ranks = self._ranks[self._deeds.index(part.stage)]
        mains = [code.bind(self._program.mesh, rank) for rank in ranks]

        def call(arguments: Sequence[Locals]) -> list[Locals]:
            inputs = [[argument[i] for argument in arguments] for i in range(len(ranks))]
            outputs = run_lockstep(mains, inputs, self._inner, code)
            return [[each[at].contiguous() for each in outputs] for at in range(len(part.makes))]

        return call

    def run(self, inputs: Sequence[Sequence[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
        """Every rank's results, of its arguments. WorkerError if the stages wait for each other for ever."""
        mail: dict[tuple[Key, int, int], deque[Locals]] = {}
        stages = [_Stage(self._calls, index, mail, len(ranks)) for index, ranks in enumerate(self._ranks)]
        turnings = [Turning(self._pipeline, s, self._given(s.index, inputs)) for s in stages]
        left = [deque(deeds) for deeds in self._deeds.of]
        while any(left):
            moved = False
            for stage, turning, deeds in zip(stages, turnings, left, strict=True):
                while deeds and stage.ready(deeds[0]):
                    turning.take(deeds.popleft())
                    moved = True
            if not moved:
                stuck = "; ".join(f"index {i}: {deeds[0]}" for i, deeds in enumerate(left) if deeds)
                raise WorkerError(f"the stages of the pipeline wait for each other: {stuck}")
        return self._results(turnings)

    def _given(self, index: int, inputs: Sequence[Sequence[torch.Tensor]]) -> dict[int, Locals]:
        homes = self._pipeline.argument_homes
        return {
            value: [inputs[rank][value] for rank in self._ranks[index]]
            for value, home in enumerate(homes)
            if home is None or self._deeds.index(home) == index
        }

    def _results(self, turnings: Sequence[Turning]) -> list[tuple[torch.Tensor, ...]]:
        made: list[list[torch.Tensor]] = [[] for _ in range(self._program.mesh.size)]
        ends = zip(self._program.results, self._pipeline.returns, self._pipeline.return_homes, strict=True)
        for result, value, home in ends:
            at = self._deeds.index(home)
            here = dict(zip(self._ranks[at], turnings[at].value(Key(value, ALL)), strict=True))
            nothing = torch.empty(0, dtype=getattr(torch, result.dtype))
            for rank, results in enumerate(made):
                results.append(here.get(rank, nothing))
        return [tuple(results) for results in made]


class _Stage:
    """The ranks of one index."""

    def __init__(
        self,
        calls: Sequence[Callable[[Sequence[Locals]], list[Locals]]],
        index: int,
        mail: dict[tuple[Key, int, int], deque[Locals]],
        ranks: int,
    ) -> None:
        self.index, self._calls, self._mail, self._size = index, calls, mail, ranks

    def ready(self, deed: Deed) -> bool:
        """Whether a deed waits for nobody. A value is sent in no time here, so it is there or has not been sent."""
        return not isinstance(deed, Receive) or bool(self._mail.get((deed.key, deed.source, self.index)))

    def on_each(self, function: Callable[..., torch.Tensor], *values: Any) -> Locals:
        if not values:
            return [function() for _ in range(self._size)]
        return [function(*each) for each in zip(*values, strict=True)]

    def call(self, program: int, arguments: Sequence[Locals]) -> list[Locals]:
        return self._calls[program](arguments)

    def send(self, key: Key, value: Locals, target: int) -> None:
        self._mail.setdefault((key, self.index, target), deque()).append(value)

    def receive(self, deed: Receive) -> InFlight:
        return Arrived(self._mail[deed.key, deed.source, self.index].popleft())  # pyright: ignore[reportArgumentType]
