"""Writes ops.md from ops.json: `python docs/generate_ops.py`. A test compares them.

The records are made by `python -m samite.testing.opinfo docs/ops.json`, which takes the better part of an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from samite.testing.opinfo import Finding, Record, Tally
from samite.testing.opinfo.record import Direction
from samite.testing.opinfo.store import Store

HERE = Path(__file__).parent
PAGE, RECORDS = HERE / "ops.md", HERE / "ops.json"

DIRECTIONS: tuple[Direction, ...] = ("forward", "gradient", "in place")
VERDICTS = ("right", "unsupported", "crashed", "wrong")
OPS = 3
"""Ops that a row names."""


def page(store: Store) -> str:
    """The page of a store. Entries that plain PyTorch cannot run here are left out, and listed."""
    tried = [r for r in store.records.values() if r.samite.verdict() != "skipped"]
    skipped = [r.name for r in store.records.values() if r.samite.verdict() == "skipped"]
    return "\n".join([*_head(store, tried), *_table(tried), *_reasons(tried), *_wrong(tried), *_skipped(skipped), ""])


def _head(store: Store, tried: list[Record]) -> Iterator[str]:
    made = store.made_by
    samples = sum(r.samples for r in tried)
    placements = sum(_tried(r.samite) for r in tried)
    yield f"""# Every op

PyTorch's op database (`torch.testing._internal.common_methods_invocations.op_db` of torch {made["torch"]}) through
Samite: {len(tried)} entries, {samples} samples, {placements} programs, each compared with plain PyTorch. A sample is
captured, forward and with its gradient, one of each entry also in place, and runs on simulated ranks of the meshes
(2), (3) and (2, 2), where dims of its tensors are split, evenly or not, alone and together with others: up to
{made["samples"]} samples of an entry's main dtype (a third of that of others) at {made["placements"]} placements
of each mesh, half as many of gradients, drawn with seed {made["seed"]}. DTensor is given the same samples and
placements; what it gives wrong was confirmed by gloo processes.{_untried(tried)}

An entry is *right* if all its programs are; one that is not supported says why. Nothing is skipped but what plain
PyTorch cannot do.

"""
    columns = {
        f"{direction}, {system}": found
        for direction in DIRECTIONS
        for system, tallies in (("Samite", [r.samite for r in tried]), ("DTensor", [r.dtensor for r in tried]))
        if (found := _verdicts(tallies, direction))
    }
    yield f"| | {' | '.join(columns)} |"
    yield f"| --- | {' | '.join(['---'] * len(columns))} |"
    for verdict in VERDICTS:
        if any(column[verdict] for column in columns.values()):
            shares = (_share(column[verdict], column.total()) for column in columns.values())
            yield f"| {verdict} | {' | '.join(shares)} |"
    right = sum(r.samite.verdict() == "right" for r in tried)
    better = [r.name for r in tried if any(_better(r, direction) for direction in DIRECTIONS)]
    yield f"\nOf {len(tried)} entries, {_share(right, len(tried))} are right in everything that was tried."
    named = ", ".join(f"`{name}`" for name in better) or "none"
    yield f"Entries that DTensor has right, in one of these, and Samite has not: {named}."


def _verdicts(tallies: Iterable[Tally], direction: Direction) -> Counter[str]:
    return Counter(verdict for tally in tallies if (verdict := tally.verdict(direction)) != "skipped")


def _untried(tried: list[Record]) -> str:
    """What is to be said of directions in which DTensor has no records."""
    missing = [d for d in DIRECTIONS if not _verdicts([r.dtensor for r in tried], d)]
    return f"\nOf DTensor this sweep has no {' and no '.join(missing)} results." if missing else ""


def _better(record: Record, direction: Direction) -> bool:
    """Whether DTensor is right where Samite is not."""
    return record.dtensor.verdict(direction) == "right" != record.samite.verdict(direction)


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.1f} %)"


def _tried(tally: Tally) -> int:
    return sum(tally.count(verdict) for verdict in VERDICTS)


def _table(tried: Iterable[Record]) -> Iterator[str]:
    yield """
## The entries

`ops` are those that reach the rules, `samite rules show OP` has the rule of one. `without gathering` counts placements
that split one dim of one tensor over one axis: at how many no value is gathered or exchanged on the way (sums of what
ranks have may be). `programs` are those that were run and compared.

| entry | ops | without gathering | samples | programs | Samite | DTensor |
| --- | --- | --- | --- | --- | --- | --- |"""
    for r in tried:
        placed = f"{r.local} of {r.local + r.whole}" if r.local + r.whole else ""
        cells = (
            f"`{r.name}`",
            _ops(r.ops),
            placed,
            r.samples,
            r.samite.count("right"),
            _said(r.samite),
            _said(r.dtensor),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _ops(ops: list[str]) -> str:
    named = ", ".join(op.removeprefix("aten.") for op in ops[:OPS])
    return named + (f" +{len(ops) - OPS}" if len(ops) > OPS else "")


def _said(tally: Tally) -> str:
    """One word, or one for each direction if they differ."""
    said = {d: _marked(verdict) for d in DIRECTIONS if (verdict := tally.verdict(d)) != "skipped"}
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "")
    return ", ".join(word if direction == "forward" else f"{direction} {word}" for direction, word in said.items())


def _marked(verdict: str) -> str:
    return f"**{verdict}**" if verdict in ("wrong", "crashed") else verdict


def _reasons(tried: Iterable[Record]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for r in tried:
        for finding in r.samite.findings:
            entries = by_reason.setdefault(finding.reason, [])
            if r.name not in entries:
                entries.append(r.name)
    yield "\n## What Samite does not support, and why\n\n| reason | entries |\n| --- | --- |"
    for reason, entries in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"| {_cell(reason)} | {', '.join(f'`{name}`' for name in entries)} |"


def _wrong(tried: Iterable[Record]) -> Iterator[str]:
    yield "\n## What DTensor gives wrong\n\nThe first call of each entry.\n\n| entry | call | placed | it gives |"
    yield "| --- | --- | --- | --- |"
    for r in tried:
        found = next((f for f in r.dtensor.findings if f.verdict == "wrong"), None)
        if found is not None:
            yield f"| `{r.name}` | {_call(found)} | {_cell(found.where)} | {_cell(found.reason)} |"


def _call(finding: Finding) -> str:
    text = finding.call if len(finding.call) <= 120 else finding.call[:117] + "..."
    return _cell(text) if finding.direction == "forward" else f"{finding.direction}: {_cell(text)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _skipped(names: list[str]) -> Iterator[str]:
    yield "\n## What is not tried\n\nPlain PyTorch has no form of these on the CPU:"
    yield ", ".join(f"`{name}`" for name in names) + "."


if __name__ == "__main__":
    PAGE.write_text(page(Store.read(RECORDS)), encoding="utf-8")
