from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from samite import plugins, umem
from samite.errors import BackendMissing, InputError, OutOfMemory
from samite.hal import hookimpl
from samite.hal.driver import Device, Driver
from samite.hal.memory import Allocation, Allocator, Buffer


class Done:
    def wait(self) -> None:
        pass


class FakeAllocator(Allocator):
    """Memory of a pretended device: host bytes, hidden from torch unless `addressable`, links as given.

    It counts allocations and bytes copied, and can be told to fail.
    """

    def __init__(self, device: Device, links: dict[Device, float], addressable: bool = False) -> None:
        self.device, self.links, self.addressable = device, links, addressable
        self.mechanism = "fake memory"
        self.live: dict[int, Allocation] = {}
        self.copies: list[tuple[str, str]] = []
        self.full = self.broken = False

    def alloc(self, nbytes: int) -> Allocation:
        if self.full:
            raise OutOfMemory(f"{nbytes} bytes do not fit")
        memory = torch.full((nbytes,), 0xCD, dtype=torch.uint8)
        allocation = Allocation(self.device, nbytes, memory if self.addressable else None, handle=memory)
        self.live[id(allocation)] = allocation
        return allocation

    def free(self, allocation: Allocation) -> None:
        del self.live[id(allocation)]  # a second free is a KeyError

    def copy(self, source: Allocation, target: Allocation) -> Done:
        assert self.device in (source.device, target.device)
        assert self.bandwidth(target.device if source.device == self.device else source.device) > 0
        if self.broken:
            target.handle.fill_(0xEE)
            raise RuntimeError("link down")
        self.copies.append((source.device.kind, target.device.kind))
        target.handle.copy_(source.handle)
        return Done()

    def bandwidth(self, other: Device) -> float:
        return self.links.get(other, 0.0)


HOST, NEAR, FAR, ISLE = (Device(kind) for kind in ("cpu", "near", "far", "isle"))


def space() -> dict[Device, FakeAllocator]:
    """Host ↔ near is slow, near ↔ far fast, host ↔ far slowest; isle is reached by nothing."""
    return {
        HOST: FakeAllocator(HOST, {}, addressable=True),
        NEAR: FakeAllocator(NEAR, {HOST: 10.0, FAR: 100.0}),
        FAR: FakeAllocator(FAR, {HOST: 1.0}),
        ISLE: FakeAllocator(ISLE, {}),
    }


def content(allocation: Allocation) -> list[int]:
    return allocation.handle.tolist()


def test_a_write_makes_the_other_replicas_stale_and_a_read_does_not() -> None:
    buffer = Buffer((4,), torch.uint8, HOST, space())
    assert buffer.stale(HOST)
    assert buffer.replicas == {}, "nothing is allocated before use"
    buffer.on(HOST, "write").handle.fill_(7)
    assert content(buffer.on(NEAR, "read")) == [7] * 4
    assert not buffer.stale(HOST)
    buffer.on(NEAR, "write").handle.fill_(8)
    assert buffer.stale(HOST)
    assert content(buffer.on(HOST, "read")) == [8] * 4


def test_a_write_starts_from_the_newest_content() -> None:
    buffer = Buffer((4,), torch.uint8, HOST, space())
    buffer.on(HOST, "write").handle.fill_(7)
    buffer.on(NEAR, "write").handle[0] = 1
    assert content(buffer.on(HOST, "read")) == [1, 7, 7, 7]


def test_the_cheapest_path_goes_through_devices_and_leaves_them_fresh() -> None:
    allocators = space()
    buffer = Buffer((4,), torch.uint8, HOST, allocators)
    buffer.on(HOST, "write").handle.fill_(7)
    assert content(buffer.on(FAR, "read")) == [7] * 4
    assert allocators[NEAR].copies == [("cpu", "near"), ("near", "far")]
    assert allocators[FAR].copies == [], "its own link to the host is slower than both hops"
    buffer.on(NEAR, "read")
    assert len(allocators[NEAR].copies) == 2, "the replica on the way is fresh"


def test_the_nearest_fresh_replica_is_the_source() -> None:
    allocators = space()
    buffer = Buffer((4,), torch.uint8, HOST, allocators)
    buffer.on(HOST, "write")
    buffer.on(NEAR, "read")
    allocators[NEAR].copies.clear()
    buffer.on(FAR, "read")
    assert allocators[NEAR].copies == [("near", "far")]


def test_no_path_is_an_error() -> None:
    buffer = Buffer((4,), torch.uint8, HOST, space())
    buffer.on(HOST, "write")
    with pytest.raises(InputError, match="no path for a buffer from cpu:0 to isle:0"):
        buffer.on(ISLE, "read")
    with pytest.raises(InputError, match=r"no allocator for moon:0 \(have: cpu:0, near:0, far:0, isle:0\)"):
        buffer.on(Device("moon"), "read")
    with pytest.raises(InputError, match="no allocator for moon:0"):
        Buffer((4,), torch.uint8, Device("moon"), space())


def test_a_failed_copy_loses_nothing() -> None:
    allocators = space()
    buffer = Buffer((4,), torch.uint8, HOST, allocators)
    buffer.on(HOST, "write").handle.fill_(7)
    allocators[NEAR].broken = True
    with pytest.raises(RuntimeError, match="link down"):
        buffer.on(NEAR, "write")
    assert buffer.stale(NEAR)
    assert content(buffer.on(HOST, "read")) == [7] * 4
    allocators[NEAR].broken = False
    assert content(buffer.on(NEAR, "read")) == [7] * 4
    assert len(allocators[NEAR].live) == 1, "the memory of the first attempt is used"


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_tensor_is_a_view_of_the_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    buffer = Buffer(shape, dtype, HOST, space())
    view = buffer.tensor()
    assert (view.shape, view.dtype) == (torch.Size(shape), dtype)
    assert buffer.nbytes == view.numel() * view.element_size()
    view.fill_(1)
    assert torch.equal(buffer.tensor(access="read"), torch.ones(shape, dtype=dtype))


def test_tensor_counts_as_a_write_unless_told() -> None:
    buffer = Buffer((4,), torch.uint8, HOST, space())
    buffer.tensor().fill_(1)
    buffer.on(NEAR, "read")
    buffer.tensor(access="read")
    assert not buffer.stale(NEAR)
    buffer.tensor()
    assert buffer.stale(NEAR)


def test_memory_that_torch_cannot_address_is_refused() -> None:
    buffer = Buffer((4,), torch.uint8, HOST, space())
    with pytest.raises(InputError, match="torch cannot address the memory of near:0"):
        buffer.tensor(NEAR)


def test_adopted_memory_is_shared_and_never_freed() -> None:
    allocators = space()
    allocators[NEAR].links = {}
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    buffer = Buffer.adopt(tensor, HOST, allocators)
    assert buffer.tensor().data_ptr() == tensor.data_ptr()
    buffer.tensor().mul_(2)
    assert tensor[1, 2] == 10
    buffer.free()
    assert tensor[1, 2] == 10
    with pytest.raises(InputError, match="contiguous"):
        Buffer.adopt(tensor.t(), HOST, allocators)
    with pytest.raises(InputError, match="is not on near:0"):
        Buffer.adopt(tensor, NEAR, allocators)


def test_memory_returns_on_free_and_on_collection() -> None:
    allocators = space()
    buffer = Buffer((4,), torch.uint8, HOST, allocators)
    buffer.on(HOST, "write")
    buffer.on(NEAR, "read")
    buffer.free()
    buffer.free()
    assert not any(allocator.live for allocator in allocators.values())
    buffer.on(NEAR, "write")
    del buffer
    gc.collect()
    assert not any(allocator.live for allocator in allocators.values())


class Coherence(RuleBasedStateMachine):
    """Any sequence of reads, writes, failures and frees against one plain list of bytes."""

    @initialize()
    def start(self) -> None:
        self.allocators = space()
        self.buffer = Buffer((3,), torch.uint8, HOST, self.allocators)
        self.model: list[int] | None = None  # what any device must read; None while nothing was written
        self.values = itertools.count(1)

    @rule(device=st.sampled_from([HOST, NEAR, FAR]), at=st.integers(0, 2))
    def write(self, device: Device, at: int) -> None:
        memory = self.buffer.on(device, "write").handle
        if self.model is None:
            memory.fill_(0)
            self.model = [0, 0, 0]
        memory[at] = self.model[at] = next(self.values) % 256

    @precondition(lambda self: self.model is not None)
    @rule(device=st.sampled_from([HOST, NEAR, FAR]))
    def read(self, device: Device) -> None:
        assert content(self.buffer.on(device, "read")) == self.model

    @precondition(lambda self: self.model is not None)
    @rule(device=st.sampled_from([NEAR, FAR]), attribute=st.sampled_from(["full", "broken"]))
    def fail(self, device: Device, attribute: str) -> None:
        for allocator in self.allocators.values():
            setattr(allocator, attribute, True)
        try:
            memory = self.buffer.on(device, "read")
        except (OutOfMemory, RuntimeError):
            pass
        else:
            assert content(memory) == self.model
        for allocator in self.allocators.values():
            setattr(allocator, attribute, False)

    @rule()
    def free(self) -> None:
        self.buffer.free()
        self.model = None
        assert not any(allocator.live for allocator in self.allocators.values())

    @invariant()
    def newest_content_is_somewhere_and_every_fresh_replica_has_it(self) -> None:
        if self.model is None:
            return
        fresh = [device for device, version in self.buffer.replicas.items() if version == self.buffer.version]
        assert fresh
        for device in fresh:
            assert not self.buffer.stale(device)
            assert content(self.buffer._replicas[device].memory) == self.model
        assert max(self.buffer.replicas.values()) == self.buffer.version

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.free()


Coherence.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCoherence = Coherence.TestCase


class HostDriver(Driver):
    """Two devices of host memory and one that torch cannot see."""

    def __init__(self) -> None:
        self.found = [Device("cpu", 0), Device("cpu", 1), Device("card", 0)]

    def devices(self):
        return self.found

    def compile(self, program, devices, options):
        raise AssertionError

    def allocator(self, device):
        return FakeAllocator(device, dict.fromkeys(self.found, 1.0), addressable=device.kind == "cpu")


class HostPlugin:
    @hookimpl
    def samite_add_drivers(self):
        return {"host": HostDriver}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(umem, "_devices", {})
    monkeypatch.setattr(umem, "_allocators", {})
    plugins.register("host", HostPlugin)
    yield "host"
    plugins.unregister("host")


def test_alloc_gives_memory_that_torch_and_numpy_share(host: str) -> None:
    buffer = umem.alloc(8, host)
    view, array = torch.from_dlpack(buffer), np.from_dlpack(buffer)
    view[:] = torch.arange(8)
    assert array.tolist() == list(range(8))
    assert view.data_ptr() == array.ctypes.data == buffer.tensor().data_ptr()
    assert content(buffer.on(umem.device("host:2"), "read")) == list(range(8))


def test_a_view_outlives_its_buffer(host: str) -> None:
    view = torch.from_dlpack(umem.alloc(4, host))
    view.fill_(3)
    gc.collect()
    assert view.tolist() == [3] * 4


def test_from_dlpack_copies_nothing(host: str) -> None:
    array = np.arange(4, dtype=np.float32)
    buffer = umem.from_dlpack(array, host)
    buffer.tensor().add_(1)
    assert array.tolist() == [1, 2, 3, 4]
    assert (buffer.shape, buffer.dtype, buffer.home) == ((4,), torch.float32, umem.device("host:0"))


def test_targets(host: str) -> None:
    assert umem.device("host") == umem.device("host:0") == Device("cpu", 0)
    assert umem.device("host:1") == Device("cpu", 1)
    for wrong in ("host:3", "host:-1", "host:x", "host:1:2"):
        with pytest.raises(InputError, match=r'no device ".*" \(there are: "host:0", "host:1", "host:2"\)'):
            umem.alloc(4, wrong)
    with pytest.raises(BackendMissing):
        umem.alloc(4, "nowhere")
    with pytest.raises(InputError, match="-1 bytes"):
        umem.alloc(-1, host)


def test_out_of_memory_reaches_the_caller(host: str) -> None:
    umem.device(host)
    for allocator in umem._allocators.values():
        allocator.full = True
    with pytest.raises(OutOfMemory):
        umem.alloc(4, host)
