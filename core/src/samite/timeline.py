"""When what happens where: spans of work on the lanes of ranks, predicted or measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Kind", "Lane", "Span", "Timeline"]

Kind = Literal["compute", "communication", "idle"]


@dataclass(frozen=True)
class Span:
    """One piece of work: `start` and `duration` in seconds, the user's `line` if known. `critical` is what lies on the
    longest chain of work that waits for work: shortening anything else gains nothing."""

    start: float
    duration: float
    kind: Kind
    name: str
    line: str = ""
    critical: bool = False

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Lane:
    """What one unit of a rank does, by ascending start; nothing on a lane overlaps."""

    rank: int
    name: str
    spans: tuple[Span, ...]

    def seconds(self, kind: Kind) -> float:
        return sum(span.duration for span in self.spans if span.kind == kind)


@dataclass(frozen=True)
class Timeline:
    """The lanes of one run, which ends after `seconds`. `hidden` is the part of the communication that costs no time,
    because something is computed meanwhile."""

    lanes: tuple[Lane, ...]
    seconds: float
    hidden: float = 0.0

    def total(self, kind: Kind) -> float:
        """Seconds of a kind on the lanes of the rank that has most of it."""
        ranks = {lane.rank for lane in self.lanes}
        return max((sum(x.seconds(kind) for x in self.lanes if x.rank == rank) for rank in ranks), default=0.0)

    def critical(self) -> tuple[Span, ...]:
        """What decides how long the run takes, by ascending start."""
        found = (span for lane in self.lanes for span in lane.spans if span.critical)
        return tuple(sorted(found, key=lambda span: span.start))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def trace(self) -> dict[str, Any]:
        """What chrome://tracing and Perfetto read (the Trace Event Format): a process a rank, a thread a lane."""
        return {"traceEvents": list(self._events()), "displayTimeUnit": "ms"}

    def _events(self) -> Iterator[dict[str, Any]]:
        for thread, lane in enumerate(self.lanes):
            where = {"pid": lane.rank, "tid": thread}
            yield {"ph": "M", "name": "process_name", **where, "args": {"name": f"rank {lane.rank}"}}
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": lane.name}}
            for span in lane.spans:
                at = {"ts": 1e6 * span.start, "dur": 1e6 * span.duration}
                more = {"line": span.line, "critical": span.critical}
                yield {"ph": "X", "name": span.name, "cat": span.kind, **where, **at, "args": more}
