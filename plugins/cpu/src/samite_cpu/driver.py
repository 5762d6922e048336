"""The CPU driver."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from samite.errors import ConfigError, nearest
from samite.hal.driver import Communicator, Device, Driver, Executable, Group, OpSignature, Support
from samite.hal.memory import Allocator
from samite.hal.program import Program
from samite_cpu.algorithms import ALGORITHMS
from samite_cpu.allocator import SharedMemory
from samite_cpu.devices import host_devices
from samite_cpu.executable import AtenExecutable

__all__ = ["CpuDriver"]

MODES = ("aten", "inductor")


class CpuDriver(Driver):
    """Runs programs on the host. Options: `mode`, "aten" (default) or "inductor"."""

    collectives: Literal["native", "communicator", "none"] = "communicator"
    algorithms: Sequence[str] = tuple(ALGORITHMS)

    def devices(self) -> Sequence[Device]:
        return host_devices()

    def supports(self, op: OpSignature) -> Support:
        """Yes for every op that torch's dispatcher can run on the CPU."""
        name = op.name.removeprefix("torch.")
        namespace, _, rest = name.partition(".")
        packet, _, overload = rest.partition(".")
        qualified = f"{namespace}::{packet}" + (f".{overload}" if overload and overload != "default" else "")
        try:
            ok = torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, "CPU")
        except RuntimeError:
            return Support(False, f"torch knows no op {qualified}")
        return Support(True) if ok else Support(False, f"{qualified} has no CPU kernel in torch {torch.__version__}")

    def compile(self, program: Program, devices: Sequence[Device], options: Mapping[str, Any]) -> Executable:
        mode = str(options.get("mode", "aten"))
        if mode == "aten":
            return AtenExecutable.compile(program, str(options.get("later", "")))
        if mode == "inductor":
            from samite_cpu.inductor import InductorExecutable

            return InductorExecutable.compile(program)
        raise ConfigError(f'mode "{mode}" of the cpu backend', help=nearest(mode, MODES))

    def load(self, artifact: bytes, devices: Sequence[Device]) -> Executable:
        return pickle.loads(artifact)  # a program: as trusted as the code that it came from

    def allocator(self, device: Device) -> Allocator:
        return SharedMemory(device)

    def communicator(self, group: Group) -> Communicator:
        """Through shared memory where the engine offers some, else by gloo."""
        if "shared_memory" in group.options:
            from samite_cpu.host import HostCommunicator

            return HostCommunicator(group)
        from samite_cpu.gloo import GlooCommunicator

        return GlooCommunicator(group)
