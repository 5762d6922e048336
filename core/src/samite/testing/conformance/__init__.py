"""The conformance kit: what every device plugin must do, as test classes to subclass.

    from samite.testing.conformance import CollectiveSuite, DriverSuite, MemorySuite, ProgramSuite

    class TestDriver(DriverSuite):
        driver_name = "my_device"

    class TestPrograms(ProgramSuite):
        driver_name = "my_device"
        unsupported = {"embedding": "no gather unit"}            # skipped, with the reason
        xfail = {"save_and_load": "ticket 12"}                   # must fail, so that a fix is noticed

Keys of `unsupported` and `xfail` are names of tests without `test_`, or of cases; each needs a reason. A backend that
is unusable here skips its tests, with the reason.
"""

from __future__ import annotations

import pytest

# Failed assertions of the suites show their values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("collectives", "drivers", "memory", "programs")))

from samite.testing.conformance.collectives import CollectiveSuite  # noqa: E402
from samite.testing.conformance.drivers import DriverSuite  # noqa: E402
from samite.testing.conformance.memory import MemorySuite  # noqa: E402
from samite.testing.conformance.programs import ProgramSuite  # noqa: E402

__all__ = ["CollectiveSuite", "DriverSuite", "MemorySuite", "ProgramSuite"]
