"""A rule bound to one call: which letter every dim is, and how large. Depends on the `Op` alone, so it is cached."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from samite.errors import RuleError
from samite.ir.graph import Constant, ListOf, Op, Slot
from samite.rules.language import Group, Rule, Term, find_rule

__all__ = ["Bound", "bind"]


@dataclass(eq=False)
class Bound:
    """`operands` and `results` have one group a dim, runs numbered ("a0", "a1"); `sizes` are global.

    `roles[k]` is the rule's operand that the call's k-th tensor stands for (a list operand has several tensors).
    """

    op: Op
    rule: Rule
    operands: list[list[Group]]
    results: list[list[Group]]
    roles: tuple[int, ...]
    linear: tuple[tuple[int, ...], ...]
    sizes: dict[str, int]
    runs: dict[str, list[str]]
    reduced: dict[str, str] = field(default_factory=dict[str, str])
    stuck: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    indexed: frozenset[str] = frozenset()
    expanded: dict[str, Any] = field(default_factory=dict[str, Any])
    splittable: frozenset[str] = frozenset()

    def letters(self, words: str) -> frozenset[str]:
        """The letters that these words of the rule mean here: "a" of a run is a0, a1, ..."""
        return frozenset(letter for word in words.split() for letter in self.runs.get(word.strip("*"), [word]))


@lru_cache(maxsize=None)
def bind(op: Op) -> Bound:
    """Raises RuleMissing, or RuleError where the call does not fit its rule's notation."""
    rule = find_rule(op)
    if rule.view is not None:  # factors are regrouped, no dim has a letter
        return Bound(op, rule, [], [], (0,), (), {}, {})
    spelling = rule.spelling(op)
    terms, roles = _operand_terms(op, rule, spelling.operands)
    where = _positions(op, rule)
    runs = _run_lengths(op, terms, spelling.results, where)
    spell = _Speller(op, rule, runs, where)
    operands = [spell(t, len(type.shape)) for t, type in zip(terms, op.operands, strict=True)]
    keepdim = bool(op.literals.get("keepdim", False))
    if len(spelling.results) != len(op.results) and len(spelling.results) == 1:
        results_terms = spelling.results * len(op.results)  # split, unbind: every result alike
    else:
        results_terms = spelling.results
    results = [
        spell(t, len(type.shape), keepdim) if type.dtype != "none" else []
        for t, type in zip(results_terms, op.results, strict=True)
    ]
    sizes = _sizes(op, rule, operands, results, runs)
    bound = Bound(op, rule, operands, results, roles, rule.linear_sets(op, len(spelling.operands)), sizes, runs)
    return _classify(bound)


def _classify(bound: Bound) -> Bound:
    rule = bound.rule
    bound.reduced = {l: kind for kind in ("sum", "max", "min", "prod") for l in bound.letters(getattr(rule, kind))}
    bound.expanded = {l: f for word, f in rule.expand.items() for l in bound.letters(word)}
    capitals = {letter for letter in bound.sizes if letter[0].isupper()}
    bound.stuck = (bound.letters(rule.whole) | capitals) - set(bound.expanded)
    bound.plain, bound.indexed = bound.letters(rule.plain), bound.letters(rule.indexes)
    had = {l for groups in bound.operands for g in groups for l in g}
    bound.splittable = (frozenset(had) | bound.indexed) - bound.stuck
    return bound


def _operand_terms(op: Op, rule: Rule, terms: tuple[Term, ...]) -> tuple[list[Term], tuple[int, ...]]:
    """The term and the rule's operand number of every tensor of the call."""
    from samite.ir.graph import overload

    if op.name.startswith("vtensor."):
        return [], ()
    schema = overload(op.name)._schema.arguments
    arguments = [item for a, item in zip(schema, op.form, strict=True) if "Tensor" in str(a.type)]
    found: list[Term] = []
    roles: list[int] = []
    role = 0
    for item in arguments:
        tensors = [i for i in item.items if isinstance(i, Slot)] if isinstance(item, ListOf) else [item]
        if isinstance(item, Constant):
            tensors = []
        alike = role < len(terms) and terms[role].list
        for k, _ in enumerate(tensors):
            term = role if alike or not isinstance(item, ListOf) else role + k
            if term >= len(terms):
                raise RuleError(f"{op}: {rule.text!r} has no term for operand {term}")
            found.append(terms[term])
            roles.append(term)
        role += 1 if alike or not isinstance(item, ListOf) else len(tensors)
    return found, tuple(roles)


def _positions(op: Op, rule: Rule) -> list[int]:
    if not rule.at:
        return []
    where = op.literals.get(rule.at)
    if where is None or where == []:
        return list(range(len(op.operands[0].shape)))
    return list(where) if isinstance(where, (list, tuple)) else [int(where)]


def _run_lengths(op: Op, terms: list[Term], results: tuple[Term, ...], where: list[int]) -> dict[str, list[str]]:
    """Every run is as long as its longest appearance; of two runs in a term the second is as long as `at`."""
    runs: dict[str, list[str]] = {}
    types = [*op.operands, *op.results]
    for term, type in zip([*terms, *results], types, strict=False):
        names = [g[0][1:] for g in term.groups if g and g[0].startswith("*")]
        if len(names) == 2:
            runs[names[1]] = [f"{names[1]}{i}" for i in range(len(where))]
        if names:
            others = sum(len(runs[g[0][1:]]) if g and g[0][0] == "*" else 1 for g in term.groups if g[:1] != (f"*{names[0]}",))
            n = max(len(type.shape) - others, len(runs.get(names[0], ())))
            runs[names[0]] = [f"{names[0]}{i}" for i in range(max(n, 0))]
    return runs


class _Speller:
    def __init__(self, op: Op, rule: Rule, runs: dict[str, list[str]], where: list[int]) -> None:
        self.op, self.rule, self.runs, self.where = op, rule, runs, where

    def __call__(self, term: Term, ndim: int, keepdim: bool = False) -> list[Group]:
        """One group a dim. Runs are aligned right; with `at`, the groups beside one sit where it says."""
        is_run = [bool(g) and g[0].startswith("*") for g in term.groups]
        parts: list[list[Group]] = [
            [(letter,) for letter in self.runs[g[0][1:]]] if run else [g]
            for g, run in zip(term.groups, is_run, strict=True)
        ]
        if not any(is_run):
            if len(parts) != ndim:
                raise RuleError(f"{self.op}: {self.rule.text!r} spells {len(parts)} dims, the call has {ndim}")
            return [g for part in parts for g in part]
        first = is_run.index(True)
        head, tail = sum(parts[:first], []), sum(parts[first + 1 :], [])
        if keepdim and not head and not tail:
            tail = [()] * len(self.where)
        beside = len(head) + len(tail)
        body = parts[first][len(parts[first]) + beside - ndim :]
        if not self.rule.at or not beside:
            return head + body + tail
        for position, group in sorted((w % ndim, g) for w, g in zip(self.where, head + tail, strict=True)):
            body.insert(position, group)
        return body


def _sizes(
    op: Op, rule: Rule, operands: list[list[Group]], results: list[list[Group]], runs: dict[str, list[str]]
) -> dict[str, int]:
    """Global sizes of the letters. A run's dim of size 1 that broadcasts is respelled as a literal 1."""
    sizes: dict[str, int] = {}
    loose = {letter for letters in runs.values() for letter in letters}
    every = list(zip(operands + results, [t.shape for t in (*op.operands, *op.results)], strict=True))
    for groups, shape in every:
        for group, n in zip(groups, shape, strict=True):
            if len(group) == 1 and (group[0] not in sizes or (sizes[group[0]] == 1 and group[0] in loose)):
                sizes[group[0]] = n
    for groups, shape in every:
        for i, (group, n) in enumerate(zip(groups, shape, strict=True)):
            unknown = [letter for letter in group if letter not in sizes]
            if unknown:  # the one letter of a compound that stands nowhere alone
                sizes[unknown[0]] = n // max(prod(sizes[letter] for letter in group if letter != unknown[0]), 1)
            if len(group) == 1 and n == 1 != sizes[group[0]] and group[0] in loose:
                groups[i] = ()
            elif prod(sizes[letter] for letter in groups[i]) != n:
                raise RuleError(f"{op}: dim {i} has size {n}, {rule.text!r} wants {group} = {sizes}")
    return sizes
