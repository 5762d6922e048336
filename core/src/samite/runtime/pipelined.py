"""Programs of pipelines as executables: each rank compiles and runs what its stages do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from samite.hal.driver import Bound, Communicator, Event, Executable, Happened, InFlight, StateSlot
from samite.hal.program import Program
from samite.runtime.board import Sequenced
from samite.runtime.pipelines import ALL, Deed, Deeds, Key, Receive
from samite.runtime.turning import Turning

__all__ = ["PipelinedExecutable"]

Compile = Callable[[Program], Executable]


class PipelinedExecutable(Executable):
    """`compile` is the backend's, for the program of one stage and phase. What a rank runs is compiled when it is first
    bound, and once: programs of stages have no state, so other state takes no other programs."""

    def __init__(self, program: Program, compile: Compile) -> None:
        self._program, self._compile = program, compile
        self._site: _Site | None = None

    def bind(self, state: Sequence[StateSlot], communicator: Communicator | None, rank: int) -> Bound:
        if self._site is None:
            self._site = _Site(self._program, self._compile, communicator, rank)
        return _Pipelined(self._program, list(state), self._site)


class _Site:
    """One rank: its programs, what it does with them in a step, and how it reaches the others."""

    def __init__(self, program: Program, compile: Compile, communicator: Communicator | None, rank: int) -> None:
        assert program.pipeline is not None, "of a pipeline"
        self._program, self.pipeline, self._communicator = program, program.pipeline, communicator
        axis = self.pipeline.axis
        self.index, self.ranks = program.mesh.coordinates(rank)[axis], program.mesh[axis]
        everyone = Deeds(self.pipeline, self.ranks)
        self._deeds: list[Deed] = everyone.of[self.index]
        self._bound: dict[int, Bound] = {
            number: compile(part.program).bind((), communicator, rank)
            for number, part in enumerate(self.pipeline.programs)
            if everyone.index(part.stage) == self.index
        }
        self._sent: list[InFlight] = []
        self._meet()

    def step(self, given: dict[int, torch.Tensor]) -> Turning:
        """All deeds of one step."""
        turning = Turning(self.pipeline, self, given)
        try:
            with self._apart(), torch.no_grad():
                for deed in self._deeds:
                    turning.take(deed)
                for under_way in self._sent:
                    under_way.wait()
        finally:
            self._sent.clear()
        return turning

    def on_each(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        return function(*values)

    def call(self, program: int, arguments: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs, event = self._bound[program].run(arguments)
        event.wait()
        return [output.contiguous() for output in outputs]  # as what reads them was compiled for

    def send(self, key: Key, value: torch.Tensor, target: int) -> None:
        self._sent.append(self._transfer(value, self.index, target))

    def receive(self, deed: Receive) -> InFlight:
        return self._transfer(self._like(deed), deed.source, self.index)

    def _like(self, deed: Receive) -> torch.Tensor:
        if deed.program >= 0:
            like = self.pipeline.programs[deed.program].program.arguments[deed.position]
        else:
            like = self._program.results[deed.position]
        return torch.empty(like.layout.local_shape(self._program.mesh), dtype=getattr(torch, like.dtype))

    def _transfer(self, x: torch.Tensor, source: int, target: int) -> InFlight:
        assert self._communicator is not None, "ranks that send have a communicator"
        return self._communicator.transfer(x, self.pipeline.axis, source, target)

    def _meet(self) -> None:
        """Once around the axis, so that all ranks have met before the first of them waits for another."""
        if self.ranks == 1:
            return
        x, before, after = torch.zeros(1), (self.index - 1) % self.ranks, (self.index + 1) % self.ranks
        under_way = [self._transfer(x, self.index, after), self._transfer(x, before, self.index)]
        for each in under_way:
            each.wait()

    def _apart(self) -> AbstractContextManager[None]:
        return self._communicator.apart() if isinstance(self._communicator, Sequenced) else nullcontext()


class _Pipelined(Bound):
    def __init__(self, program: Program, state: list[StateSlot], site: _Site) -> None:
        self._program, self._state, self._site = program, state, site

    def run(self, inputs: Sequence[torch.Tensor], wait: Sequence[Event] = ()) -> tuple[list[torch.Tensor], Event]:
        for event in wait:
            event.wait()
        return self._settle(self._site.step(self._given(inputs))), Happened()

    def close(self) -> None:
        self._state.clear()

    def _given(self, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        state, others = iter(self._state), iter(inputs)
        columns = enumerate(zip(self._program.arguments, self._site.pipeline.argument_homes, strict=True))
        given: dict[int, torch.Tensor] = {}
        for value, (argument, home) in columns:
            tensor = next(state).value if argument.kind == "state" else next(others)
            if home is None or home % self._site.ranks == self._site.index:
                given[value] = tensor
        return given

    def _settle(self, turning: Turning) -> list[torch.Tensor]:
        """New state into its slots; the other results, or nothing where they are not held here."""
        slots = iter(self._state)
        by_argument = {at: next(slots) for at, a in enumerate(self._program.arguments) if a.kind == "state"}
        outputs: list[torch.Tensor] = []
        ends = zip(self._program.results, self._site.pipeline.returns, self._site.pipeline.return_homes, strict=True)
        for result, value, home in ends:
            here = home % self._site.ranks == self._site.index
            if result.alias >= 0:
                if here:
                    by_argument[result.alias].value = turning.value(Key(value, ALL))
            elif here:
                outputs.append(turning.value(Key(value, ALL)))
            else:
                outputs.append(torch.empty(0, dtype=getattr(torch, result.dtype)))
        return outputs
