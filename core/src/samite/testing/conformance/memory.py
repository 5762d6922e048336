"""What an allocator promises to unified memory."""

from __future__ import annotations

import pytest
import torch

from samite.errors import OutOfMemory
from samite.hal.driver import Device, Driver, Event
from samite.hal.memory import Allocation, Allocator, Buffer
from samite.testing.conformance.suite import Suite

__all__ = ["MemorySuite"]

HOST = Device("cpu", index=1 << 16, name="memory of the test", bandwidth=1e9)


class MemorySuite(Suite):
    """Allocation, copies to and from host memory, unified buffers."""

    @pytest.fixture
    def allocator(self, driver: Driver, device: Device) -> Allocator:
        return driver.allocator(device)

    def test_names_its_device_and_mechanism(self, allocator: Allocator, device: Device) -> None:
        assert allocator.device == device
        assert allocator.mechanism

    @pytest.mark.parametrize("nbytes", [0, 1, 3, 4096, 1 << 20])
    def test_allocates(self, allocator: Allocator, device: Device, nbytes: int) -> None:
        allocation = allocator.alloc(nbytes)
        assert (allocation.nbytes, allocation.device) == (nbytes, device)
        if allocation.bytes is not None:
            assert (allocation.bytes.dtype, tuple(allocation.bytes.shape)) == (torch.uint8, (nbytes,))
            assert allocation.bytes.data_ptr() % 16 == 0, "aligned for any dtype"
        allocator.free(allocation)

    def test_reaches_the_host(self, allocator: Allocator) -> None:
        assert allocator.bandwidth(HOST) > 0

    @pytest.mark.parametrize("nbytes", [0, 1, 1000, 1 << 20])
    def test_copies_exactly(self, allocator: Allocator, nbytes: int) -> None:
        source, back = (_host(_random(nbytes, seed)) for seed in (1, 2))
        there = allocator.alloc(nbytes)
        allocator.copy(source, there).wait()
        allocator.copy(there, back).wait()
        assert torch.equal(_bytes(source), _bytes(back))
        allocator.free(there)

    def test_allocations_do_not_overlap(self, allocator: Allocator) -> None:
        contents = [_random(4096, seed) for seed in range(8)]
        there = [allocator.alloc(4096) for _ in contents]
        for content, allocation in zip(contents, there, strict=True):
            allocator.copy(_host(content), allocation).wait()
        for content, allocation in zip(contents, there, strict=True):
            back = _host(torch.zeros_like(content))
            allocator.copy(allocation, back).wait()
            assert torch.equal(_bytes(back), content)
            allocator.free(allocation)

    def test_copies_on_the_device(self, allocator: Allocator) -> None:
        content = _random(4096, seed=1)
        one, other, back = allocator.alloc(4096), allocator.alloc(4096), _host(torch.zeros_like(content))
        for source, target in ((_host(content), one), (one, other), (other, back)):
            allocator.copy(source, target).wait()
        assert torch.equal(_bytes(back), content)
        allocator.free(one)
        allocator.free(other)

    def test_too_much_is_out_of_memory(self, allocator: Allocator) -> None:
        with pytest.raises(OutOfMemory):
            allocator.alloc(1 << 60)
        allocator.free(allocator.alloc(4096))

    def test_what_a_tensor_shows_outlives_free(self, allocator: Allocator) -> None:
        allocation = allocator.alloc(4096)
        if allocation.bytes is None:
            pytest.skip("torch cannot address this memory")
        view = allocation.bytes.fill_(7)
        allocator.free(allocation)
        del allocation
        assert view.sum().item() == 7 * 4096

    def test_a_buffer_is_coherent(self, allocator: Allocator, device: Device) -> None:
        buffer = Buffer((1000,), torch.uint8, HOST, {HOST: _HostAllocator(), device: allocator})
        content = _random(1000, seed=1)
        buffer.tensor(HOST).copy_(content)
        buffer.on(device, "write")
        assert buffer.stale(HOST)
        assert torch.equal(buffer.tensor(HOST, "read"), content)
        assert not buffer.stale(device)
        buffer.free()

    def test_dlpack_shares_memory(self, allocator: Allocator, device: Device) -> None:
        buffer = Buffer((4, 2), torch.float32, device, {device: allocator})
        memory = buffer.on(device, "write").bytes
        if memory is None:
            pytest.skip("torch cannot address this memory")
        view = torch.from_dlpack(buffer)
        assert (view.data_ptr(), tuple(view.shape), view.dtype) == (memory.data_ptr(), (4, 2), torch.float32)


class _HostAllocator(Allocator):
    """Plain host memory, which every device's allocator reaches."""

    device = HOST
    mechanism = "host memory"

    def alloc(self, nbytes: int) -> Allocation:
        return _host(torch.empty(nbytes, dtype=torch.uint8))

    def free(self, allocation: Allocation) -> None: ...

    def copy(self, source: Allocation, target: Allocation) -> Event:
        raise AssertionError("the device's allocator copies")

    def bandwidth(self, other: Device) -> float:
        return 0.0


def _host(content: torch.Tensor) -> Allocation:
    return Allocation(HOST, content.numel(), content)


def _bytes(allocation: Allocation) -> torch.Tensor:
    assert allocation.bytes is not None
    return allocation.bytes


def _random(nbytes: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
