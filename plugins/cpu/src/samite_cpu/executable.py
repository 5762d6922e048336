"""Programs as ATen calls: compiled to Python source once, run by the interpreter that lockstep uses."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from samite.hal.driver import Communicator, Event, Executable, Happened, StateSlot
from samite.hal.program import Program
from samite.lowering import Sizes, to_fx
from samite.mesh import Mesh
from samite.runtime.interpreter import Code, Main, generate, run
from samite_cpu.reuse import plan
from samite_cpu.warming import warm_up

__all__ = ["AtenExecutable", "Interface"]


@dataclass(frozen=True)
class Interface:
    """What a bound program needs of a `Program`: picklable without its module.

    `state` marks each argument that is state; `replaced` gives for each result the index of the state (among the
    state) that it replaces, or -1.
    """

    mesh: Mesh
    state: tuple[bool, ...]
    replaced: tuple[int, ...]

    @cached_property
    def _inputs(self) -> Sequence[int]:
        return [index for index, is_state in enumerate(self.state) if not is_state]

    @cached_property
    def _replacing(self) -> Sequence[tuple[int, int]]:
        return [(at, index) for at, index in enumerate(self.replaced) if index >= 0]

    @cached_property
    def _plain(self) -> Sequence[int]:
        return [at for at, index in enumerate(self.replaced) if index < 0]

    @classmethod
    def of(cls, program: Program) -> Interface:
        state = tuple(argument.kind == "state" for argument in program.arguments)
        replaced = tuple(sum(state[: result.alias]) if result.alias >= 0 else -1 for result in program.results)
        return cls(program.mesh, state, replaced)

    def arguments(self, slots: Sequence[StateSlot], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All arguments in the program's order."""
        arguments = [slot.value for slot in slots]
        for index, value in zip(self._inputs, inputs, strict=True):
            arguments.insert(index, value)
        return arguments

    def settle(self, slots: Sequence[StateSlot], outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Puts new state in its slots; gives the other results."""
        for at, index in self._replacing:
            slots[index].value = outputs[at]
        return [outputs[at] for at in self._plain]


class AtenExecutable(Executable):
    """A program as source. Its artifact holds names of ops and literals, so loading it needs no compiler.

    What is made for a second program of one form takes the sizes in which the two differ as arguments, and serves all
    others that differ in these: `sizes` describes them, and `values` are this program's.
    """

    def __init__(
        self, code: Code, interface: Interface, sizes: Sizes | None = None, values: tuple[int, ...] = ()
    ) -> None:
        self._code, self._interface, self._sizes, self._values = code, interface, sizes, values
        self._program: Program | None = None  # that it was compiled from, here
        self._later = ""

    @classmethod
    def compile(cls, program: Program, later: str = "") -> AtenExecutable:
        """`later` is the mode of the program that will follow this one."""
        made = cls(_generate(program, None), Interface.of(program))
        made._program, made._later = program, later
        return made

    def resized(self, program: Program) -> AtenExecutable | None:
        code, sizes = self._code, self._sizes
        if sizes is None and self._program is not None:
            sizes = Sizes.of(self._program.numbers, program.numbers)
            code = _generate(program, sizes)
        values = None if sizes is None else sizes.values(program.numbers)
        return None if values is None else AtenExecutable(code, self._interface, sizes, values)

    def save(self) -> bytes:
        return pickle.dumps(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_program": None}

    def bind(self, state: Sequence[StateSlot], communicator: Communicator | None, rank: int) -> _Bound:
        slots = list(state)
        if self._later == "inductor":
            warm_up()

        def spare(index: int) -> torch.Tensor:
            """Where the next value of a state is written: what its slot offers, else new memory."""
            memory = slots[index].spare()
            return torch.empty_like(slots[index].value) if memory is None else memory

        main = self._code.bind(self._interface.mesh, rank, spare=spare)
        return _Bound(self._code, self._interface, main, slots, communicator, rank, self._values)


def _generate(program: Program, sizes: Sizes | None) -> Code:
    module = to_fx(program, sizes)
    return generate(module, program.name, plan(module, program))


@dataclass
class _Bound:
    code: Code
    interface: Interface
    main: Main
    slots: list[StateSlot]
    communicator: Communicator | None
    rank: int
    sizes: tuple[int, ...]

    def run(self, inputs: Sequence[torch.Tensor], wait: Sequence[Event] = ()) -> tuple[list[torch.Tensor], Event]:
        for event in wait:
            event.wait()
        arguments = [*self.interface.arguments(self.slots, inputs), *self.sizes]
        with torch.no_grad():
            outputs = run(self.main, arguments, self.communicator, self.code, self.rank)
        return self.interface.settle(self.slots, outputs), Happened()

    def close(self) -> None:
        self.slots.clear()
