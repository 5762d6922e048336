"""What a pass is, and what the pipeline records of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from samite.ir.module import Module

__all__ = ["Pass", "PassRecord"]


class Pass(Protocol):
    """A step of the compiler: a module in, a module out. Holds no operation or value across its border."""

    name: str

    def run(self, module: Module) -> Module:
        """The rewritten module; the old one is not used afterwards."""
        ...


@dataclass(frozen=True)
class PassRecord:
    """`seconds` it took; `ops` in the module after it; `bytes_moved` a rank receives in one run, once there are
    collectives; `text` of the module, if it was asked for; `notes` that the pass has for the user."""

    name: str
    seconds: float
    ops: int
    bytes_moved: int
    notes: tuple[str, ...] = ()
    text: str = ""
