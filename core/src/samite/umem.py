"""The user's door to unified memory: buffers that any loaded backend's devices can share.

buffer = samite.umem.alloc(1 << 20, "cpu")        # bytes; usable where DLPack is: torch, numpy, ...
torch.from_dlpack(buffer)[:] = 7
buffer.on(samite.umem.device("gpu_triton:0"), "read")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samite import plugins
from samite.errors import InputError

if TYPE_CHECKING:
    from samite.hal.driver import Device
    from samite.hal.memory import Allocator, Buffer

__all__ = ["alloc", "device", "from_dlpack"]

_devices: dict[str, Sequence[Device]] = {}
_allocators: dict[Device, Allocator] = {}


def device(target: str) -> Device:
    """The device `target`: a backend's name ("cpu": its first device), or with a number ("cpu:0")."""
    backend, _, number = target.partition(":")
    if backend not in _devices:
        driver = plugins.driver(backend)
        found = driver.devices()
        # Every device joins: content may pass through it even if no buffer lives there.
        _allocators.update({each: driver.allocator(each) for each in found})
        _devices[backend] = found
    index = int(number or 0) if (number or "0").isdecimal() else -1
    if not 0 <= index < len(_devices[backend]):
        there = ", ".join(f'"{backend}:{n}"' for n in range(len(_devices[backend]))) or "none"
        raise InputError(f'no device "{target}" (there are: {there})')
    return _devices[backend][index]


def alloc(nbytes: int, target: str = "cpu") -> Buffer:
    """`nbytes` of arbitrary content on `target`. InputError for a negative size, OutOfMemory if it does not fit."""
    import torch

    from samite.hal.memory import Buffer

    if nbytes < 0:
        raise InputError(f"a buffer of {nbytes} bytes")
    buffer = Buffer((nbytes,), torch.uint8, device(target), _allocators)
    buffer.on(buffer.home, "write")
    return buffer


def from_dlpack(source: Any, target: str = "cpu") -> Buffer:
    """A buffer over the memory of whatever speaks DLPack (or a tensor) and lies on `target`, without a copy."""
    import torch

    from samite.hal.memory import Buffer

    return Buffer.adopt(torch.from_dlpack(source), device(target), _allocators)
