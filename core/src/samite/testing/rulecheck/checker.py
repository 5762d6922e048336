"""Brute force: every rule, on every sample, at every placement, against the unsharded result."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import torch

from samite.errors import RuleError, SamiteError, nearest
from samite.ir.graph import Op, overload
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules import rules
from samite.rules.binding import bind
from samite.rules.planning import plan_op
from samite.testing.rulecheck.placements import layouts_of
from samite.testing.rulecheck.report import Finding, OpChecked, Report
from samite.testing.rulecheck.sample import Sample, one_op, tensors_of
from samite.testing.rulecheck.trial import Case, run_case

__all__ = ["check_rules"]

MESHES: tuple[Mapping[str, int], ...] = ({"a": 2}, {"a": 3}, {"a": 2, "b": 2})

Placed = tuple[tuple[Layout, ...], tuple[Layout | None, ...]]
"""(layouts of the operands, layouts that are wished for the results)"""


def check_rules(
    ops: Iterable[str] | None = None,
    meshes: Sequence[Mapping[str, int]] = MESHES,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    limit: int = 64,
    seed: int = 0,
) -> Report:
    """Try the rules of `ops` ("aten.mm"; default: all that have samples) on `meshes`.

    Every sample is tried at every combination of operand layouts and wished result layouts, or at `limit` of them,
    drawn by `seed`. `samples` are by op, besides those of the built-in rules. Raises RuleError for an op without a
    rule or without a sample.
    """
    from samite.testing.rulecheck.samples import all_samples

    known = {**all_samples(), **(samples or {})}
    report = Report()
    for name in known if ops is None else ops:
        if name not in rules():
            raise RuleError(f"{name} has no rule", help=nearest(name, rules()))
        if not known.get(name):
            raise RuleError(
                f"{name} has no sample", help='pass some: samples={"ns.op": [Sample("ns.op", (floats(7, 4),))]}'
            )
        for sample in known[name]:
            for mesh in meshes:
                _check(sample, Mesh(tuple(mesh), tuple(mesh.values())), limit, seed, report)
    return report


def _check(sample: Sample, mesh: Mesh, limit: int, seed: int, report: Report) -> None:
    generator = torch.Generator().manual_seed(seed)
    args, kwargs = sample.draw(generator)
    op = one_op(sample.op, args, kwargs)
    operands = tensors_of(args, kwargs)
    with torch.no_grad():
        result = overload(sample.op)(*args, **kwargs)
    expected = list(result) if isinstance(result, (tuple, list)) else [result]
    rule = rules()[sample.op].text
    checked = report.ops.setdefault(sample.op, OpChecked(rule if isinstance(rule, str) else f"{rule.__name__}(op)"))
    checked.samples += mesh.axes == ("a",) and mesh["a"] == 2
    for case in _cases(op, mesh, limit, seed, report, sample):
        for poisoned in (True, False) if _has_ints(op) else (True,):
            checked.trials += 1
            problem = run_case(op, case, operands, expected, mesh, generator, poisoned=poisoned, compare=sample.compare)
            if problem:
                report.wrong.append(_finding(sample, mesh, str(case), problem))
                break


def _has_ints(op: Op) -> bool:
    """Integers in padding may be bad indices when they are large, and bad divisors when they are 0: both are tried."""
    return any(t.dtype.startswith(("int", "uint")) for t in op.operands)


def _finding(sample: Sample, mesh: Mesh, placements: str, problem: str) -> Finding:
    rule = rules()[sample.op]
    text = rule.text if isinstance(rule.text, str) else rule.text.__name__
    return Finding(sample.op, text or "view", str(sample), str(dict(mesh)), placements, problem)


def _cases(op: Op, mesh: Mesh, limit: int, seed: int, report: Report, sample: Sample) -> Iterator[Case]:
    """The distinct plans of all placements that are tried."""
    seen: set[Case] = set()
    bound = bind(op)
    for have, wish in _placements(op, mesh, limit, seed):
        try:
            made = plan_op(bound, have, mesh, wish)
        except SamiteError as error:
            texts = f"{', '.join(map(str, have))} -> {', '.join(map(str, wish))}"
            report.wrong.append(_finding(sample, mesh, texts, f"no plan: {error.what}"))
            continue
        case = Case(made.needs, made.results)
        if case not in seen:
            seen.add(case)
            yield case


def _placements(op: Op, mesh: Mesh, limit: int, seed: int) -> Iterator[Placed]:
    """All of them, or those in which one operand or result is laid out, and then random ones up to the limit."""
    operands = [layouts_of(t, mesh) for t in op.operands]
    results = [(None, *layouts_of(t, mesh, owed=False)[1:]) for t in op.results]
    count = 1
    for options in (*operands, *results):
        count *= len(options)
    if count <= limit:
        for drawn in product(*operands, *results):
            yield _placed(drawn, len(operands))
        return
    first: list[Layout | None] = [options[0] for options in (*operands, *results)]
    singles = [(i, option) for i, options in enumerate((*operands, *results)) for option in options[1:]]
    chance = random.Random(f"{seed} {op.name}")
    chance.shuffle(singles)
    for i, option in singles[: max(limit // 2, 1)]:
        yield _placed([*first[:i], option, *first[i + 1 :]], len(operands))
    for _ in range(limit - min(len(singles), limit // 2)):
        drawn = [chance.choice(options) for options in operands]
        drawn += [chance.choice(options) if chance.random() < 0.3 else None for options in results]
        yield _placed(drawn, len(operands))


def _placed(drawn: Sequence[Layout | None], operands: int) -> Placed:
    return tuple(layout for layout in drawn[:operands] if layout is not None), tuple(drawn[operands:])
