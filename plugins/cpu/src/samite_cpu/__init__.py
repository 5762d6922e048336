"""The CPU backend of Samite. Importing it imports no runtime; the driver does, at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from samite.hal import hookimpl

if TYPE_CHECKING:
    from samite.hal.driver import Driver

__all__ = ["Plugin"]


class Plugin:
    org = "samite"

    @hookimpl
    def samite_add_drivers(self) -> Mapping[str, Callable[[], Driver]]:
        return {"cpu": _driver}


def _driver() -> Driver:
    from samite_cpu.driver import CpuDriver

    return CpuDriver()
