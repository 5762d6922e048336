"""What a device plugin implements. Enumerating is cheap and creates nothing; everything else may load a runtime."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

from samite.errors import UnsupportedOp
from samite.hal.program import Program
from samite.ir.collectives import AUTO
from samite.mesh import Mesh

if TYPE_CHECKING:
    from samite.hal.memory import Allocator

__all__ = [
    "Arrived",
    "Bound",
    "Communicator",
    "Device",
    "Driver",
    "Event",
    "Executable",
    "Group",
    "Happened",
    "InFlight",
    "OpSignature",
    "StateSlot",
    "Support",
]


@dataclass(frozen=True)
class Device:
    """One device as data. `bandwidth` is bytes/s of its memory, `latency` seconds of one dispatch."""

    kind: str
    index: int = 0
    name: str = ""
    memory: int = 0
    bandwidth: float = 0.0
    latency: float = 0.0
    memory_mechanism: str = ""
    numa_node: int = -1


@dataclass(frozen=True)
class OpSignature:
    """An op as a backend is asked about it: "torch.aten.mm", its operands' dtypes and local shapes."""

    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Support:
    """Yes, or no with the reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Group:
    """How the ranks of one mesh meet: `address` is "host:port" of the store, `generation` counts restarts.

    Engines may set options: `timeout_s` to wait for a peer; `namespace` in a store that others use; `interface_address`
    to bind to; `shared_memory`, a `samite.hal.shared.Segment` that all ranks map, where they are on one host.
    """

    mesh: Mesh
    rank: int
    address: str
    generation: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


class Event(Protocol):
    def wait(self) -> None: ...


class Happened(Event):
    """Of what was over before it was told of, as on devices that run a program before they return."""

    def wait(self) -> None:
        return None


class StateSlot(Protocol):
    """Where one state buffer of one rank lives. A bound program reads `value` and puts the new one there."""

    value: torch.Tensor

    def spare(self) -> torch.Tensor | None:
        """Memory like `value`'s that the next value may be written to before it is put there, which then copies
        nothing. None (the default) if there is none. `value` itself stays as it is until the step has ended: a step
        that fails changes no state."""
        return None


class InFlight(Protocol):
    """A collective under way."""

    def wait(self) -> torch.Tensor:
        """Its result, once it is there."""
        ...


@dataclass(frozen=True)
class Arrived(InFlight):
    """One that is over."""

    result: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.result


@runtime_checkable
class Communicator(Protocol):
    """The dialect's collectives over local tensors. `axes` are mesh axes, major first; peers are ordered by them.

    Subclass it for the defaults. An `algorithm` other than "auto" is one of the driver's `algorithms`; `chunk_bytes` is
    the size of the pieces that it is to send, 0 if that is open.
    """

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor: ...
    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor: ...
    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor: ...
    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor: ...
    def barrier(self) -> None: ...
    def close(self) -> None: ...

    def start(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> InFlight:
        """The collective `verb` of these arguments, of which the caller does not wait for the result; until it does, it
        leaves `x` as it is. Default: done at once."""
        return Arrived(getattr(self, verb)(x, axes, *arguments))

    def transfer(self, x: torch.Tensor, axis: str, source: int, target: int) -> InFlight:
        """From the rank with index `source` on an axis to the one with index `target`: only these two call it, the
        second with a tensor like the one that it will be given. Transfers between two ranks arrive in the order in
        which they are started; until one is over, its source leaves `x` as it is. Default: a permutation of two."""
        return self.start("permute", x, (axis,), ((source, target),))


class Bound(Protocol):
    """A program ready to run: warmed up, state bound."""

    def run(self, inputs: Sequence[torch.Tensor], wait: Sequence[Event] = ()) -> tuple[list[torch.Tensor], Event]:
        """`inputs` are the local tensors of the arguments that are not state, in order.

        Gives the results that alias no argument, in order; the others are in their slots.
        """
        ...

    def close(self) -> None: ...


class Executable(Protocol):
    """A compiled program. Subclass it for the defaults."""

    def save(self) -> bytes:
        """An artifact that `Driver.load` takes, in this or another process. Default: UnsupportedOp."""
        raise UnsupportedOp(f"{type(self).__name__} cannot be saved")

    def resized(self, program: Program) -> Executable | None:
        """An executable for a program of the same form and interface, which differs in numbers: for other sizes of
        inputs. Default: None, it is compiled on its own."""
        return None

    @abstractmethod
    def bind(self, state: Sequence[StateSlot], communicator: Communicator | None, rank: int) -> Bound:
        """`state` holds a slot for every state argument, in order."""
        ...


@runtime_checkable
class Driver(Protocol):
    """A device plugin. Subclass it: beyond devices, compile and the allocator everything defaults to absent."""

    collectives: Literal["native", "communicator", "none"] = "none"
    algorithms: Sequence[str] = ()
    """Of "direct", "ring" and "tree" those that all_reduces can be asked for. Default: none, the backend decides."""

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices here, possibly none. Equal values at every call."""
        ...

    def supports(self, op: OpSignature) -> Support:
        """Whether `compile` takes this op. Default: whatever it raises UnsupportedOp for comes to light there."""
        return Support(True)

    @abstractmethod
    def compile(self, program: Program, devices: Sequence[Device], options: Mapping[str, Any]) -> Executable:
        """UnsupportedOp names the op that it cannot take."""
        ...

    def load(self, artifact: bytes, devices: Sequence[Device]) -> Executable:
        """What `Executable.save` gave. Default: UnsupportedOp."""
        raise UnsupportedOp(f"{type(self).__name__} loads no artifacts")

    @abstractmethod
    def allocator(self, device: Device) -> Allocator: ...

    def communicator(self, group: Group) -> Communicator:
        """Meets the other ranks of `group`; every rank calls it. Default: UnsupportedOp."""
        raise UnsupportedOp(f"{type(self).__name__} has no collectives")
