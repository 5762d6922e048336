"""What all suites share: the driver under test, and what it declares not to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from samite import plugins
from samite.errors import BackendUnusable, ConfigError, nearest
from samite.hal.driver import Device, Driver

__all__ = ["Suite"]


class Suite:
    """Base of the suites. A subclass names its driver; its declarations are checked when the class is made."""

    driver_name: ClassVar[str]
    unsupported: ClassVar[Mapping[str, str]] = {}
    xfail: ClassVar[Mapping[str, str]] = {}
    cases: ClassVar[Sequence[str]] = ()
    """Names of parametrised cases, which may be declared beside those of tests."""

    def __init_subclass__(cls) -> None:
        known = [*(name.removeprefix("test_") for name in dir(cls) if name.startswith("test_")), *cls.cases]
        for declaration in ("unsupported", "xfail"):
            for key, reason in getattr(cls, declaration).items():
                if key not in known:
                    raise ConfigError(
                        f'no test or case "{key}"', where=f"{cls.__qualname__}.{declaration}", help=nearest(key, known)
                    )
                if not reason.strip():
                    raise ConfigError(f'"{key}" needs a reason', where=f"{cls.__qualname__}.{declaration}")

    @pytest.fixture(autouse=True)
    def declared(self, request: pytest.FixtureRequest) -> None:
        """Applies `unsupported` and `xfail` to the test and to the case that it runs."""
        names = {request.function.__name__.removeprefix("test_")}
        if hasattr(request.node, "callspec"):
            names.update(request.node.callspec.id.split("-"))
        for name in names:
            if name in self.unsupported:
                pytest.skip(f"{self.driver_name} does not support {name}: {self.unsupported[name]}")
            if name in self.xfail:
                request.node.add_marker(pytest.mark.xfail(reason=self.xfail[name], strict=True))

    @pytest.fixture
    def driver(self) -> Driver:
        try:
            return plugins.driver(self.driver_name)
        except BackendUnusable as error:
            pytest.skip(str(error))

    @pytest.fixture
    def device(self, driver: Driver) -> Device:
        """The first device."""
        devices = driver.devices()
        if not devices:
            pytest.skip(f"{self.driver_name} finds no device here")
        return devices[0]
