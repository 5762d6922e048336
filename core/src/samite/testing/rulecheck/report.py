"""What the checker found."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from samite.errors import RuleError

__all__ = ["Finding", "OpChecked", "Report"]


@dataclass(frozen=True)
class Finding:
    """One placement at which a rule is wrong, or one that it misses. All fields are texts for people."""

    op: str
    rule: str
    sample: str
    mesh: str
    placements: str
    problem: str

    def __str__(self) -> str:
        fields = {"rule": self.rule, "sample": self.sample, "mesh": self.mesh, "layouts": self.placements}
        return f"{self.op}: {self.problem}" + "".join(f"\n  {name:8}{text}" for name, text in fields.items())


@dataclass
class OpChecked:
    """How often one op was tried: `planned` placements, `trials` of the plans that they lead to on shards."""

    rule: str
    samples: int = 0
    planned: int = 0
    trials: int = 0
    gradients: int = 0

    def __add__(self, other: OpChecked) -> OpChecked:
        """Of one op."""
        counts = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "rule"}
        return OpChecked(self.rule, **counts)


@dataclass
class Report:
    """`wrong`: placements at which a rule gives other numbers than the unsharded op. `missing`: placements at which the
    op is right on shards as they lie, without communication, though its rule moves an operand first."""

    ops: dict[str, OpChecked] = field(default_factory=dict[str, OpChecked])
    wrong: list[Finding] = field(default_factory=list[Finding])
    missing: list[Finding] = field(default_factory=list[Finding])

    @property
    def ok(self) -> bool:
        return not self.wrong

    def merge(self, other: Report) -> None:
        """Take in what was found of other ops, or of other samples of these. What an op misses is kept once."""
        for name, checked in other.ops.items():
            self.ops[name] = self.ops[name] + checked if name in self.ops else checked
        self.wrong += other.wrong
        known = {(f.op, f.placements) for f in self.missing}
        self.missing += [f for f in other.missing if (f.op, f.placements) not in known]

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """Of what `dataclasses.asdict` gave."""
        return Report(
            {name: OpChecked(**checked) for name, checked in data["ops"].items()},
            [Finding(**f) for f in data["wrong"]],
            [Finding(**f) for f in data["missing"]],
        )

    def raise_wrong(self) -> None:
        """Raises RuleError that shows the first wrong placements."""
        if self.wrong:
            shown = "\n\n".join(map(str, self.wrong[:5]))
            raise RuleError(
                f"{len(self.wrong)} placements are wrong:\n\n{shown}", help="the rule must lose a letter, or mask"
            )

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console
        from rich.table import Table

        table = Table("op", "rule", "samples", "trials", "gradients", "wrong", "missing")
        for name, checked in sorted(self.ops.items()):
            counts = (checked.samples, checked.trials, checked.gradients, self._count(self.wrong, name))
            table.add_row(name, checked.rule, *map(str, counts), str(self._count(self.missing, name)))
        text = StringIO()
        console = Console(file=text, width=160)
        console.print(table)
        for finding in self.wrong:
            console.print(f"wrong: {finding}", markup=False, highlight=False)
        for finding in self.missing:
            console.print(f"missing: {finding.op}: {finding.placements}", markup=False, highlight=False)
        return text.getvalue()

    def _count(self, findings: list[Finding], op: str) -> int:
        return sum(finding.op == op for finding in findings)
