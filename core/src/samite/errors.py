"""Every error that Samite raises, in one tree.

    SamiteError
    ├── ConfigError               a configuration file, variable or argument is wrong
    ├── MeshError                 unknown axis, too many ranks, meshes that differ
    ├── PlacementError            a placement names no tensor, no dim, or splits too often
    ├── LayoutError               operand layouts that an op cannot take
    ├── CaptureError              the function cannot be captured as one graph
    ├── InputError                an argument of another shape, dtype or device than was compiled
    ├── RuleError                 a sharding rule is malformed
    │   └── RuleMissing           an op has no sharding rule
    ├── VerifyError               a module breaks an invariant of the IR
    ├── PassMissing               no pass has this name
    ├── ScheduleError             a pipeline's schedule is wrong, or there is none
    ├── PluginError               a plugin is broken, twice there, or of another API version
    │   ├── BackendMissing        the backend or engine is not installed
    │   └── BackendUnusable       it is installed and cannot work here (why)
    ├── UnsupportedOp             a backend declines an op
    ├── OutOfMemory               host, shared or device memory is full
    └── WorkerError               a worker raised
        ├── WorkerDied            a worker process is gone
        └── CollectiveMismatch    ranks disagree on the sequence of collectives

The text of an error says what is wrong, where (op and source line), and what to do::

    LayoutError: mm: dim k is split over axis "tp" in operand 0, replicated in operand 1   (train.py:41)
      help: reshard operand 1 to Shard(0) over "tp", or gather operand 0
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BackendMissing",
    "BackendUnusable",
    "CaptureError",
    "CollectiveMismatch",
    "ConfigError",
    "InputError",
    "LayoutError",
    "MeshError",
    "OutOfMemory",
    "PassMissing",
    "PlacementError",
    "PluginError",
    "RuleError",
    "RuleMissing",
    "SamiteError",
    "ScheduleError",
    "UnsupportedOp",
    "VerifyError",
    "WorkerDied",
    "WorkerError",
    "nearest",
]


class SamiteError(Exception):
    """Base of all errors. `what` is one line; `where` is "file:line" or an op; `help` says what to do."""

    def __init__(self, what: str, *, where: str = "", help: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.help = what, where, help

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f"   ({self.where})"
        if self.help:
            text += f"\n  help: {self.help}"
        return text

    def __reduce__(self):
        # Exceptions cross process borders; the default would drop the keyword arguments.
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[SamiteError], state: dict[str, object]) -> SamiteError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = (state.get("what", ""),)
    return error


class ConfigError(SamiteError):
    pass


class MeshError(SamiteError):
    pass


class PlacementError(SamiteError):
    pass


class LayoutError(SamiteError):
    pass


class CaptureError(SamiteError):
    pass


class InputError(SamiteError):
    pass


class RuleError(SamiteError):
    pass


class RuleMissing(RuleError):
    pass


class VerifyError(SamiteError):
    pass


class PassMissing(SamiteError):
    pass


class ScheduleError(SamiteError):
    pass


class PluginError(SamiteError):
    pass


class BackendMissing(PluginError):
    pass


class BackendUnusable(PluginError):
    pass


class UnsupportedOp(SamiteError):
    pass


class OutOfMemory(SamiteError):
    pass


class WorkerError(SamiteError):
    """A worker raised. `rank` is the worker's; `remote_traceback` is its formatted traceback."""

    def __init__(
        self, what: str, *, rank: int = -1, remote_traceback: str = "", where: str = "", help: str = ""
    ) -> None:
        super().__init__(what, where=where, help=help)
        self.rank, self.remote_traceback = rank, remote_traceback

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.remote_traceback.rstrip()}" if self.remote_traceback else text


class WorkerDied(WorkerError):
    pass


class CollectiveMismatch(WorkerError):
    pass


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a help line that names what the user may have meant: `did you mean "a" or "b"?`, or all if few."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f'"{c}"' for c in close) + "?"
    return "known: " + (", ".join(f'"{k}"' for k in known[:12]) or "none") + (", ..." if len(known) > 12 else "")
