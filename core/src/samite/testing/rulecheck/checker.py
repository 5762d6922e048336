"""Brute force: every rule, on every sample, at every placement, against the unsharded result."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import torch

from samite.errors import RuleError, SamiteError, nearest
from samite.ir.graph import overload
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules import rules
from samite.rules.binding import bind
from samite.rules.planning import OpPlan, plan_between, plan_op
from samite.testing.rulecheck.draws import Placed, draw
from samite.testing.rulecheck.gradients import Gradient, gradient_of
from samite.testing.rulecheck.missing import describe, works_locally
from samite.testing.rulecheck.placements import layouts_of
from samite.testing.rulecheck.plans import plans_of
from samite.testing.rulecheck.report import Finding, OpChecked, Report
from samite.testing.rulecheck.sample import Sample, one_op, replace_tensors, tensors_of
from samite.testing.rulecheck.trial import Case, run_case

__all__ = ["check_rules"]

MESHES: tuple[Mapping[str, int], ...] = ({"a": 2}, {"a": 3}, {"a": 2, "b": 2})
PLACEMENTS = 256
"""Of a sample and mesh, given to planning where nothing limits: of a few operands there are billions on two axes."""
GRADIENTS = 3
"""Placements of a sample and mesh at which its gradient is tried if nothing else is said; each compiles a program."""


def check_rules(
    ops: Iterable[str] | None = None,
    meshes: Sequence[Mapping[str, int]] = MESHES,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    limit: int | None = 64,
    seed: int = 0,
    gradients: int = GRADIENTS,
    missing: bool = True,
) -> Report:
    """Try the rules of `ops` ("aten.mm"; default: all that have samples) on `meshes`.

    Of every sample `limit` placements of operands and results, drawn by `seed`, are planned, and the plans run. If
    `limit` is None all plans of the rule run (`plans_of`), and up to `PLACEMENTS` placements are planned, to show that
    they lead to one of these. `samples` are by op, besides those of the built-in rules. `gradients` is at how many
    placements each op is also taken forward and backward; `missing` looks for placements that rules could have, on the
    first mesh. Raises RuleError for an op without a rule or without a sample.
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
            trial = _Trial(sample, limit, seed, report)
            report.ops[name].samples += 1
            for mesh in (Mesh(tuple(m), tuple(m.values())) for m in meshes):
                trial.forward(mesh)
                trial.gradient(mesh, gradients)
            if missing and meshes:
                trial.missing(Mesh(tuple(meshes[0]), tuple(meshes[0].values())))
    return report


class _Trial:
    """One sample: its call, its operands, and what the whole op gives."""

    def __init__(self, sample: Sample, limit: int | None, seed: int, report: Report) -> None:
        self.sample, self.limit, self.report = sample, limit, report
        self.generator = torch.Generator().manual_seed(seed)
        self.chance = random.Random(f"{seed} {sample}")
        self.args, self.kwargs = sample.draw(self.generator)
        self.op = one_op(sample.op, self.args, self.kwargs)
        self.bound = bind(self.op)
        self.operands = tensors_of(self.args, self.kwargs)
        self.expected: list[torch.Tensor | None] = [*self.call(self.operands)]
        self.checked = report.ops.setdefault(sample.op, OpChecked(str(self.bound.rule)))

    def call(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        with torch.no_grad():
            args, kwargs = replace_tensors(self.args, given), replace_tensors(self.kwargs, given)
            result = overload(self.sample.op)(*args, **kwargs)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def found(self, mesh: Mesh, placements: object, problem: str) -> Finding:
        return Finding(self.sample.op, self.checked.rule, str(self.sample), str(dict(mesh)), str(placements), problem)

    def forward(self, mesh: Mesh) -> None:
        # Integers in padding may be bad indices when they are large, and bad divisors when they are 0.
        integers = any(x.dtype not in (torch.bool,) and not x.is_floating_point() for x in self.operands)
        for case in self._cases(mesh):
            for poisoned in (True, False) if integers else (True,):
                self.checked.trials += 1
                problem = run_case(
                    self.op,
                    case,
                    self.operands,
                    self.expected,
                    mesh,
                    self.generator,
                    poisoned=poisoned,
                    compare=self.sample.compare,
                )
                if problem:
                    self.report.wrong.append(self.found(mesh, case, problem))
                    break

    def _cases(self, mesh: Mesh) -> Iterator[Case]:
        """What the rule's plans are, if nothing limits, and what placements are brought to; none twice."""
        plans = plans_of(self.bound, mesh) if self.limit is None else ()
        placed = (self._plan(drawn, mesh) for drawn in self._placements(mesh))
        made = (Case(plan.needs, plan.results) for plan in chain(plans, placed) if plan is not None)
        return iter(dict.fromkeys(made))

    def gradient(self, mesh: Mesh, placements: int) -> None:
        made = self._gradient if placements else None
        if made is None:
            return
        types = [a.type for a in made.graph.arguments]
        for _ in range(placements):
            layouts = [self.chance.choice(layouts_of(t, mesh, owed=False)) for t in types]
            self.checked.gradients += 1
            problem = made.run(layouts, mesh, self.generator)
            if problem:
                self.report.wrong.append(self.found(mesh, ", ".join(map(str, layouts)), f"gradient: {problem}"))

    @cached_property
    def _gradient(self) -> Gradient | None:
        wanted = self.sample.gradient
        return gradient_of(self.sample.op, self.args, self.kwargs, self.generator) if wanted else None

    def missing(self, mesh: Mesh) -> None:
        if self.sample.trusting or self.bound.rule.view is not None:
            return
        if not all(x.numel() for x in (*self.operands, *self.expected) if x is not None):
            return  # without numbers anything is right
        for placed in self._placements(mesh):
            made = self._plan(placed, mesh)
            if made is None or made.needs == placed.have or any(placed.wish) or not self._harmless(placed.have, mesh):
                continue
            results = works_locally(self.op, self.call, self.operands, self.expected, placed.have, mesh, self.generator)
            # A rule that can leave an operand where it is may still find it cheaper not to.
            if results is not None and plan_between(self.bound, placed.have, results, mesh) is None:
                texts = f"{describe(placed.have)} -> {describe(results)}"
                if not any((f.op, f.placements) == (self.sample.op, texts) for f in self.report.missing):
                    self.report.missing.append(self.found(mesh, texts, "right without communication"))

    def _harmless(self, have: Sequence[Layout], mesh: Mesh) -> bool:
        """Whether kernels can be let loose on these shards. Not all check that shapes agree or that indices are in
        range: so the notation's letters must have one local size, and an index must be one."""
        if any(x.owed and role in self.bound.rule.padding for x, role in zip(have, self.bound.roles, strict=True)):
            return False
        lengths: dict[tuple[str, ...], set[int]] = {}
        for groups, layout in zip(self.bound.operands, have, strict=True):
            for group, length in zip(groups, layout.local_shape(mesh), strict=True):
                lengths.setdefault(group, set()).add(length)
        return all(len(found) == 1 for found in lengths.values())

    def _plan(self, placed: Placed, mesh: Mesh) -> OpPlan | None:
        self.checked.planned += 1
        try:
            return plan_op(self.bound, placed.have, mesh, placed.wish)
        except SamiteError as error:
            self.report.wrong.append(self.found(mesh, placed, f"no plan: {error.what}"))
            return None

    def _placements(self, mesh: Mesh) -> Iterator[Placed]:
        return draw(self.op, mesh, PLACEMENTS if self.limit is None else self.limit, self.chance)
