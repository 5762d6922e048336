"""What a sweep keeps of one entry of the database; JSON, and the same for both systems."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from samite.testing.opinfo.outcomes import Outcome, Verdict

__all__ = ["Direction", "Finding", "Record", "Tally"]

Direction = Literal["forward", "gradient", "in place"]
KEPT = 2
"""Findings of one reason that are kept."""
REASONS = 12
"""Reasons of one verdict that are kept."""


@dataclass(frozen=True)
class Finding:
    """One call that is not right. All fields are texts for people."""

    verdict: Verdict
    reason: str
    direction: Direction
    call: str
    where: str
    """Mesh and placements; empty if the call fails at all of them."""


@dataclass
class Tally:
    """The calls of one entry in one system: how many came out how, and examples of those that are not right."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, outcome: Outcome, direction: Direction, call: str, where: str) -> None:
        key = f"{direction} {outcome.verdict}"
        self.counts[key] = self.counts.get(key, 0) + 1
        if outcome.verdict in ("right", "skipped"):
            return
        alike = [f for f in self.findings if (f.verdict, f.direction) == (outcome.verdict, direction)]
        same = sum(f.reason == outcome.reason for f in alike)
        if same < KEPT and (same or len({f.reason for f in alike}) < REASONS):
            self.findings.append(Finding(outcome.verdict, outcome.reason, direction, call, where))

    def count(self, verdict: Verdict, direction: Direction | None = None) -> int:
        kinds = get_args(Direction) if direction is None else (direction,)
        return sum(self.counts.get(f"{kind} {verdict}", 0) for kind in kinds)

    def verdict(self, direction: Direction | None = None) -> Verdict:
        """The gravest of all calls; "skipped" if none was tried."""
        for verdict in ("wrong", "crashed", "unsupported", "right"):
            if self.count(verdict, direction):
                return verdict
        return "skipped"


@dataclass
class Record:
    """One entry: `ops` are the ops that its calls become. Of the placements that split one dim of one tensor over one
    axis, `whole` ones gather a value somewhere and `local` ones do not."""

    name: str
    samples: int = 0
    ops: list[str] = field(default_factory=list[str])
    local: int = 0
    whole: int = 0
    samite: Tally = field(default_factory=Tally)
    dtensor: Tally = field(default_factory=Tally)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Record:
        sides: dict[str, Any] = {
            side: Tally(data[side]["counts"], [Finding(**f) for f in data[side]["findings"]])
            for side in ("samite", "dtensor")
        }
        return Record(**{**data, **sides})
