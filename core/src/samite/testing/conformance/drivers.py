"""What a driver says about itself and its devices."""

from __future__ import annotations

import re

from samite import plugins
from samite.hal import API_VERSION
from samite.hal.driver import Device, Driver, OpSignature
from samite.testing.conformance.suite import Suite

__all__ = ["DriverSuite"]


class DriverSuite(Suite):
    """Discovery, enumeration, capabilities."""

    def test_is_listed(self, driver: Driver) -> None:
        (info,) = [info for info in plugins.listing() if info.name == self.driver_name]
        assert (info.kind, info.state, info.reason) == ("backend", "active", "")
        assert re.fullmatch(rf"[^/]+/{self.driver_name}/v{API_VERSION}", info.full_name)
        assert info.origin
        assert plugins.driver(info.full_name) is driver

    def test_enumerates_the_same_devices_again(self, driver: Driver) -> None:
        devices = list(driver.devices())
        assert devices == list(driver.devices())
        assert len({(device.kind, device.index) for device in devices}) == len(devices)

    def test_describes_its_devices(self, driver: Driver, device: Device) -> None:
        for found in driver.devices():
            assert found.kind
            assert found.name
            assert found.index >= 0
            assert found.memory > 0, "bytes"
            assert 1e6 < found.bandwidth < 1e15, "bytes/s"
            assert 0 < found.latency < 1, "seconds"
            assert found.memory_mechanism
            assert found.numa_node >= -1

    def test_says_how_programs_communicate(self, driver: Driver) -> None:
        assert driver.collectives in ("native", "communicator", "none")

    def test_supports_matmul(self, driver: Driver) -> None:
        assert driver.supports(OpSignature("torch.aten.mm", ("float32", "float32"), ((4, 8), (8, 4))))

    def test_declines_with_a_reason(self, driver: Driver) -> None:
        answer = driver.supports(OpSignature("torch.aten.no_such_op", ("float32",), ((4,),)))
        assert answer.ok or answer.reason
