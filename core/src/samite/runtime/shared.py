"""Executables that serve several programs of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samite.hal.driver import Device, Driver, Executable
from samite.hal.program import Program

__all__ = ["Shared"]


class Shared:
    """Compiles with a driver; a program that differs from an earlier one in sizes alone takes what was made for that,
    where the driver can do so."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: dict[tuple[object, ...], list[Executable]] = {}

    def compile(self, program: Program, devices: Sequence[Device], options: Mapping[str, Any]) -> Executable:
        """`Driver.compile`, or `Executable.resized` of one that was compiled here."""
        interface = tuple((a.kind, a.dtype) for a in program.arguments), tuple(r.alias for r in program.results)
        key = program.form, interface, tuple(sorted(options.items()))
        alike = self._made.setdefault(key, []) if program.form else []
        for index, earlier in enumerate(alike):
            if (resized := earlier.resized(program)) is not None:
                alike[index] = resized
                return resized
        made = self._driver.compile(program, devices, options)
        alike.append(made)
        return made
