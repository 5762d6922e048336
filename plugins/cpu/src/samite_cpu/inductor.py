"""Programs compiled by Inductor: fused C++ kernels around ATen's matmuls, and around the collectives."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from samite.hal.driver import Bound, Communicator, Event, Executable, Happened, StateSlot
from samite.hal.program import Program
from samite.ir.collectives import AUTO, chosen, using
from samite.lowering import Sizes, to_fx
from samite.mesh import Mesh
from samite_cpu.closing import Closed, close
from samite_cpu.executable import Interface
from samite_cpu.kernels import Conditions, compile_for_many_sizes, compile_for_one_size, load

__all__ = ["InductorExecutable"]

log = logging.getLogger("samite")


@dataclass(frozen=True)
class InductorExecutable(Executable):
    """An artifact of Inductor. It holds machine code, so it loads on the kind of CPU and version of torch it was made
    for; compiling again finds Inductor's own cache.

    The second program of a form is compiled with symbols for the sizes in which it differs from the first, and that
    serves all others that differ in these, as long as the `conditions` hold that Inductor made of them: `sizes`
    describes them, and `values` are this program's.
    """

    artifact: bytes
    closed: Closed
    interface: Interface
    sizes: Sizes | None = None
    values: tuple[int, ...] = ()
    conditions: Conditions | None = None  # known where it was compiled, as is `program`
    program: Program | None = None

    @classmethod
    def compile(cls, program: Program) -> InductorExecutable:
        module, closed = close(to_fx(program), program)
        artifact = compile_for_one_size(module, closed, program)
        return cls(artifact, closed, Interface.of(program), program=program)

    def resized(self, program: Program) -> InductorExecutable | None:
        if self.sizes is None:
            return None if self.program is None else self._for_many_sizes(self.program, program)
        values = self.sizes.values(program.numbers)
        if values is None or self.conditions is None or not self.conditions.hold(values):
            return None
        return replace(self, values=values)

    def _for_many_sizes(self, first: Program, second: Program) -> InductorExecutable | None:
        sizes = Sizes.of(first.numbers, second.numbers)
        values = sizes.values(second.numbers)
        assert values is not None, "sizes of two programs are those of the second"
        if min(values, default=0) < 2:  # 0 and 1 are no sizes of symbols
            return None
        module, closed = close(to_fx(second, sizes), second)
        try:
            artifact, conditions = compile_for_many_sizes(module, closed, second, sizes)
        except Exception as error:
            log.info("%s: Inductor compiles each size of inputs: %s", second.name, error)
            return None
        return InductorExecutable(artifact, closed, self.interface, sizes, values, conditions)

    def save(self) -> bytes:
        return pickle.dumps(replace(self, conditions=None, program=None))

    def bind(self, state: Sequence[StateSlot], communicator: Communicator | None, rank: int) -> Bound:
        endpoint = _Endpoint(communicator, self.interface.mesh, rank)
        indices = [torch.tensor(endpoint.axis_index(axes)) for axes in self.closed.places]
        at, mesh = self.interface.mesh.coordinates(rank), self.interface.mesh
        lengths = [torch.tensor(length.factor(self.values).span(mesh, at)[1]) for length in self.closed.lengths]
        fixed = [*self.values, *indices, *lengths, *self.closed.literals]
        return _Bound(load(self.artifact), self.interface, self.closed.replaced, fixed, list(state), endpoint)


class _Endpoint:
    """A communicator as compiled code calls it: a collective's result is never its operand, whose memory Inductor may
    use for something else."""

    def __init__(self, communicator: Communicator | None, mesh: Mesh, rank: int) -> None:
        self._communicator, self._mesh, self._rank = communicator, mesh, rank

    def axis_index(self, axes: Sequence[str]) -> int:
        return self._mesh.peers(self._rank, axes).index(self._rank)

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor:
        return self._own("all_reduce", x, axes, reduce_type, *chosen(algorithm, chunk_bytes))

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._own("all_gather", x, axes, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._own("reduce_scatter", x, axes, dim, reduce_type)

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._own("all_to_all", x, axes, split_dim, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._own("permute", x, axes, pairs)

    def _own(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> torch.Tensor:
        if prod(self._mesh[axis] for axis in axes) == 1:
            return x.clone()
        result = getattr(self._communicator, verb)(x, axes, *arguments)
        return result.clone() if result is x else result


@dataclass
class _Bound:
    call: Callable[..., Any]
    interface: Interface
    replaced: tuple[int, ...]
    fixed: list[int | torch.Tensor]
    slots: list[StateSlot]
    endpoint: _Endpoint

    def run(self, inputs: Sequence[torch.Tensor], wait: Sequence[Event] = ()) -> tuple[list[torch.Tensor], Event]:
        for event in wait:
            event.wait()
        following = [self._memory(index) for index in self.replaced]
        arguments = self.interface.arguments(self.slots, inputs)
        with torch.no_grad(), using(self.endpoint):
            results = self.call(*arguments, *self.fixed, *following)
        for index, memory in zip(self.replaced, following, strict=True):
            self.slots[index].value = memory
        return list(results), Happened()

    def close(self) -> None:
        self.slots.clear()

    def _memory(self, index: int) -> torch.Tensor:
        """Where the next value of a state goes: what its slot offers, else new memory."""
        spare = self.slots[index].spare()
        return torch.empty_like(self.slots[index].value) if spare is None else spare
