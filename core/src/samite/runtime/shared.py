"""Executables that serve several programs of one form, and several starts of one script."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from samite.errors import UnsupportedOp
from samite.hal.driver import Device, Driver, Executable
from samite.hal.program import Program
from samite.runtime.artifacts import WORTH_KEEPING, Artifacts, artifact_name
from samite.runtime.pipelined import PipelinedExecutable

__all__ = ["Shared"]


class Shared:
    """Compiles with a driver; a program that differs from an earlier one in sizes alone takes what was made for that,
    where the driver can do so, and one that was compiled by an earlier process what was kept in `artifacts`."""

    def __init__(self, driver: Driver, backend: str = "", artifacts: Artifacts | None = None) -> None:
        self._driver, self._backend, self._artifacts = driver, backend, artifacts
        self._made: dict[tuple[object, ...], list[Executable]] = {}

    def compile(self, program: Program, devices: Sequence[Device], options: Mapping[str, Any]) -> Executable:
        """`Driver.compile`, or what saves it. Of a pipeline each rank compiles what it runs, when it is bound."""
        if program.pipeline is not None:
            return PipelinedExecutable(program, lambda part: self.compile(part, devices, options))
        interface = tuple((a.kind, a.dtype) for a in program.arguments), tuple(r.alias for r in program.results)
        key = program.form, interface, tuple(sorted(options.items()))
        alike = self._made.setdefault(key, []) if program.form else []
        for index, earlier in enumerate(alike):
            if (resized := earlier.resized(program)) is not None:
                alike[index] = resized
                return resized
        if self._artifacts is None:
            made = self._driver.compile(program, devices, options)
        else:
            made = self._kept(self._artifacts, program, devices, options)
        alike.append(made)
        return made

    def _kept(
        self, artifacts: Artifacts, program: Program, devices: Sequence[Device], options: Mapping[str, Any]
    ) -> Executable:
        name = artifact_name(program, self._backend, self._driver, options)
        if (artifact := artifacts.get(name)) is not None:
            try:
                return self._driver.load(artifact, devices)
            except Exception as error:
                artifacts.refuse(name, error)
        started = time.monotonic()
        made = self._driver.compile(program, devices, options)
        if time.monotonic() - started > WORTH_KEEPING:
            try:
                artifacts.put(name, made.save())
            except UnsupportedOp:
                return made  # a backend that saves nothing
        return made
