"""The cpu backend passes the kit that every backend must pass."""

from __future__ import annotations

import pytest

from samite.testing.conformance import CollectiveSuite, DriverSuite, MemorySuite, ProgramSuite


class TestDriver(DriverSuite):
    driver_name = "cpu"


class TestMemory(MemorySuite):
    driver_name = "cpu"


class TestPrograms(ProgramSuite):
    driver_name = "cpu"


@pytest.mark.multiprocess
class TestCollectives(CollectiveSuite):
    driver_name = "cpu"
