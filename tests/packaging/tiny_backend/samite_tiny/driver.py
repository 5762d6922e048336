"""All that a backend must have: devices, memory, and programs compiled, bound and run."""

from __future__ import annotations

import pickle

import torch

from samite.errors import OutOfMemory
from samite.hal.driver import Bound, Device, Driver, Executable
from samite.hal.memory import Allocation, Allocator
from samite.lowering import to_fx
from samite.runtime.interpreter import generate, run

DEVICE = Device("tiny", 0, "a pretended device", memory=2**30, bandwidth=1e9, latency=1e-6, memory_mechanism="hidden")


class Ready:
    """The event of what has happened already."""

    def wait(self):
        pass


class TinyAllocator(Allocator):
    """Bytes on the heap that only `copy` reaches."""

    mechanism = "hidden"

    def __init__(self, device):
        self.device = device

    def alloc(self, nbytes):
        if nbytes > self.device.memory:
            raise OutOfMemory(f"{nbytes} bytes on a device of {self.device.memory}")
        return Allocation(self.device, nbytes, handle=bytearray(nbytes))

    def free(self, allocation):
        allocation.handle.clear()

    def copy(self, source, target):
        content = memoryview(source.bytes.numpy() if source.bytes is not None else source.handle)
        memoryview(target.bytes.numpy() if target.bytes is not None else target.handle)[:] = content
        return Ready()


class TinyBound(Bound):
    def __init__(self, executable, state):
        self.executable, self.state = executable, list(state)
        self.main = executable.code.bind(executable.mesh, 0)

    def run(self, inputs, wait=()):
        for event in wait:
            event.wait()
        executable, given, slots = self.executable, iter(inputs), iter(self.state)
        arguments = [next(slots).value if kind == "state" else next(given) for kind in executable.kinds]
        with torch.no_grad():
            results = run(self.main, arguments, None, executable.code, 0)
        outputs = []
        for value, alias in zip(results, executable.aliases, strict=True):
            if alias < 0:
                outputs.append(value)
            else:
                self.state[executable.kinds[:alias].count("state")].value = value
        return outputs, Ready()

    def close(self):
        self.state.clear()


class TinyExecutable(Executable):
    def __init__(self, code, mesh, kinds, aliases):
        self.code, self.mesh, self.kinds, self.aliases = code, mesh, kinds, aliases

    def save(self):
        return pickle.dumps(vars(self))

    def bind(self, state, communicator, rank):
        return TinyBound(self, state)


class TinyDriver(Driver):
    def devices(self):
        return [DEVICE]

    def compile(self, program, devices, options):
        kinds = [argument.kind for argument in program.arguments]
        aliases = [result.alias for result in program.results]
        return TinyExecutable(generate(to_fx(program), program.name), program.mesh, kinds, aliases)

    def load(self, artifact, devices):
        return TinyExecutable(**pickle.loads(artifact))

    def allocator(self, device):
        return TinyAllocator(device)
