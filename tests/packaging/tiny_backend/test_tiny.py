"""The tests of a plugin: the conformance kit."""

from __future__ import annotations

from samite.testing.conformance import CollectiveSuite, DriverSuite, MemorySuite, ProgramSuite


class TestDriver(DriverSuite):
    driver_name = "tiny"


class TestMemory(MemorySuite):
    driver_name = "tiny"


class TestPrograms(ProgramSuite):
    driver_name = "tiny"


class TestCollectives(CollectiveSuite):
    driver_name = "tiny"
