"""A rule bound to one call: which letter every dim is, and how large. Depends on the `Op` alone, so it is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Any

from samite.errors import RuleError
from samite.ir.graph import ListOf, Op, Slot, overload
from samite.placement import REDUCTIONS
from samite.rules.language import Rule, find_rule, operand_sets
from samite.rules.notation import Group, Notation, Term, is_run

__all__ = ["Bound", "bind"]


@dataclass(frozen=True, eq=False)
class Bound:
    """`operands` and `results` have one group a dim, runs numbered ("a0", "a1"); `sizes` are global.

    `roles[k]` is the rule's operand that the call's k-th tensor stands for (a list operand has several tensors). `runs`
    has the letters of each run. `unspelled` are the letters that a 0-d tensor has no dim for.
    """

    op: Op
    rule: Rule
    notation: Notation
    operands: tuple[tuple[Group, ...], ...] = ()
    results: tuple[tuple[Group, ...], ...] = ()
    roles: tuple[int, ...] = (0,)
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    unspelled: frozenset[str] = frozenset()

    def letters(self, words: str) -> frozenset[str]:
        """The letters that these words of the rule mean here: "a" of a run is a0, a1, ..."""
        return frozenset(letter for word in words.split() for letter in self.runs.get(word.strip("*"), (word,)))

    @cached_property
    def linear(self) -> tuple[tuple[int, ...], ...]:
        return self._sets(self.rule.linear)

    @cached_property
    def passing(self) -> tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...]:
        """(kind that operands owe, kind that results then owe, the sets of operands that may owe it together)."""
        rising, falling = self._sets(self.rule.increasing), self._sets(self.rule.decreasing)
        found = [(kind, kind, rising) for kind in ("max", "min") if rising]
        found += [(kind, other, falling) for kind, other in (("max", "min"), ("min", "max")) if falling]
        return (*found, ("sum", "sum", tuple(roles for roles in self.linear if not self._wraps(roles))))

    def _wraps(self, roles: Sequence[int]) -> bool:
        """Whether one of these operands is of unsigned numbers, terms of which wrap around, and a result is of a dtype
        in which they would not."""
        unsigned = {t.dtype for t, r in zip(self.op.operands, self.roles, strict=True) if r in roles}
        unsigned = {dtype for dtype in unsigned if dtype.startswith("uint")}
        return any(result.dtype not in (dtype, "none") for dtype in unsigned for result in self.op.results)

    def _sets(self, option: str | Callable[[Op], str]) -> tuple[tuple[int, ...], ...]:
        return operand_sets(option(self.op) if callable(option) else option, len(self.notation.operands))

    @cached_property
    def reduced(self) -> Mapping[str, str]:
        """Letter -> the kind that it leaves owed if it is split."""
        return {letter: kind for kind in REDUCTIONS for letter in self.letters(getattr(self.rule, kind))}

    @cached_property
    def expanded(self) -> Mapping[str, Any]:
        """Letter -> the expansion to use if it is split."""
        return {letter: fn for word, fn in self.rule.expand.items() for letter in self.letters(word)}

    @cached_property
    def plain(self) -> frozenset[str]:
        return self.letters(self.rule.plain) | self.partners.keys()

    @cached_property
    def partners(self) -> Mapping[str, tuple[str, ...]]:
        """By letter of a window the others that this call has."""
        return {x: tuple(y for y in ys if y in self.sizes) for x, ys in self.rule.partners.items() if x in self.sizes}

    @cached_property
    def indexed(self) -> frozenset[str]:
        return self.letters(self.rule.indexes)

    @cached_property
    def splittable(self) -> frozenset[str]:
        had = {letter for groups in self.operands for group in groups for letter in group}
        had |= {partner for letter, partners in self.partners.items() if letter in had for partner in partners}
        stuck = (self.letters(self.rule.whole) | {x for x in self.sizes if x[0].isupper()}) - set(self.expanded)
        return (frozenset(had) | self.indexed) - stuck - self.unspelled


@cache
def bind(op: Op) -> Bound:
    """Raises RuleMissing, or RuleError where the call does not fit its rule's notation."""
    rule = find_rule(op)
    if rule.view is not None:  # factors are regrouped, no dim has a letter
        return Bound(op, rule, Notation((Term(()),), (Term(()),)))
    notation = rule.notation(op)
    terms, roles = _operand_terms(op, rule, notation.operands)
    results = notation.results
    if len(results) == 1:
        results = results * len(op.results)  # split, unbind: every result alike
    if len(results) != len(op.results):
        raise RuleError(f'{op}: "{rule}" has {len(results)} results, the call has {len(op.results)}')
    speller = _Speller(op, rule, terms, results)
    operands = [speller.spell(t, len(x.shape)) for t, x in zip(terms, op.operands, strict=True)]
    made = [
        speller.spell(t, len(x.shape), speller.kept) if x.dtype != "none" else []
        for t, x in zip(results, op.results, strict=True)
    ]
    runs = {name: tuple(letters) for name, letters in speller.runs.items()}
    sizes = _sizes(op, rule, operands, made, runs, notation.sizes)
    spelled = tuple(map(tuple, operands)), tuple(map(tuple, made))
    return Bound(op, rule, notation, *spelled, roles, runs, sizes, frozenset(speller.unspelled))


def _operand_terms(op: Op, rule: Rule, terms: Sequence[Term]) -> tuple[list[Term], tuple[int, ...]]:
    """The term and the rule's operand number of every tensor of the call."""
    found: list[Term] = []
    roles: list[int] = []
    role = 0
    for tensors in _tensor_arguments(op):
        listed = tensors is not None and role < len(terms) and terms[role].list
        # A list that the notation spells out has one term a tensor; an absent operand has a term and no tensor.
        width = 1 if tensors is None or listed else tensors
        for k in range(tensors or 0):
            at = role if listed else role + k
            if at >= len(terms):
                raise RuleError(f'{op}: "{rule}" has no term for operand {at}', help="write a term for each tensor")
            found.append(terms[at])
            roles.append(at)
        role += width
    return found, tuple(roles)


def _tensor_arguments(op: Op) -> Iterator[int | None]:
    """For every argument of the schema that takes tensors, how many it has here; None where it is left out."""
    if op.name.startswith("vtensor."):  # not an op of torch
        return
    for argument, item in zip(overload(op.name)._schema.arguments, op.form, strict=True):
        if "Tensor" in str(argument.type):
            if isinstance(item, ListOf):
                yield sum(isinstance(i, Slot) for i in item.items)
            else:
                yield 1 if isinstance(item, Slot) else None


class _Speller:
    """Turns terms into one group a dim: how long each run is, and at which dims the letters beside it sit."""

    def __init__(self, op: Op, rule: Rule, terms: Sequence[Term], results: Sequence[Term]) -> None:
        self.op, self.rule = op, rule
        self.where = self._positions()
        self.kept = len(self.where) if op.literals.get("keepdim") else 0
        self.runs: dict[str, list[str]] = {}
        self.unspelled: set[str] = set()
        for term, type in zip(terms, op.operands, strict=True):
            self._measure(term, len(type.shape))
        for term, type in zip(results, op.results, strict=True):
            beside = any(not is_run(g) for g in term.groups)
            self._measure(term, len(type.shape) - (0 if beside else self.kept))

    def _positions(self) -> list[int]:
        if not self.rule.at or not self.op.operands or not self.op.operands[0].shape:
            return []
        where = self.op.literals.get(self.rule.at)
        if where is None or where == []:
            return list(range(len(self.op.operands[0].shape)))
        return list(where) if isinstance(where, (list, tuple)) else [int(where)]

    def _measure(self, term: Term, ndim: int) -> None:
        """A run is as long as its longest appearance; the second one of a term is as long as `at`."""
        names = [g[0][1:] for g in term.groups if is_run(g)]
        if not names:
            return
        for name in names[1:]:
            self.runs[name] = [f"{name}{i}" for i in range(len(self.where))]
        others = len(term.groups) - len(names) + sum(len(self.runs[name]) for name in names[1:])
        length = max(ndim - others, len(self.runs.get(names[0], ())))
        self.runs[names[0]] = [f"{names[0]}{i}" for i in range(length)]

    def spell(self, term: Term, ndim: int, kept: int = 0) -> list[Group]:
        """Runs are aligned right. With `at`, the groups beside one sit where it says; `kept` dims of 1 do so too."""
        if ndim == 0:  # torch takes a 0-d tensor for one of a dim; here the dim is none, and so whole elsewhere
            self.unspelled.update(letter for group in term.groups if not is_run(group) for letter in group)
            return []
        if not any(map(is_run, term.groups)):
            groups = list(term.groups) or [()] * kept
            if len(groups) != ndim:
                raise RuleError(f'{self.op}: "{self.rule}" spells {len(groups)} dims, the call has {ndim}')
            return groups
        first = next(i for i, g in enumerate(term.groups) if is_run(g))
        run = [(letter,) for letter in self.runs[term.groups[first][0][1:]]]
        head, tail = list(term.groups[:first]), list(self._flat(term.groups[first + 1 :]))
        if kept and not head and not tail:
            tail = [()] * kept
        body: list[Group] = list(run[len(run) + len(head) + len(tail) - ndim :])
        if len(head) + len(tail) + len(body) != ndim:
            raise RuleError(
                f'{self.op}: "{self.rule}" spells {len(head) + len(tail)} dims and more, the call has {ndim}'
            )
        if not self.rule.at or not (head or tail):
            return head + body + tail
        for position, group in sorted((w % ndim, g) for w, g in zip(self.where, head + tail, strict=True)):
            body.insert(position, group)
        return body

    def _flat(self, groups: Sequence[Group]) -> Iterator[Group]:
        for group in groups:
            yield from [(letter,) for letter in self.runs[group[0][1:]]] if is_run(group) else [group]


def _sizes(
    op: Op,
    rule: Rule,
    operands: list[list[Group]],
    results: list[list[Group]],
    runs: Mapping[str, Sequence[str]],
    stated: Mapping[str, int],
) -> dict[str, int]:
    """Global sizes of the letters. A run's dim of size 1 that broadcasts is respelled as a literal 1."""
    sizes = dict(stated)
    loose = {letter for letters in runs.values() for letter in letters}
    every = list(zip(operands + results, [t.shape for t in (*op.operands, *op.results)], strict=True))
    for groups, shape in every:
        for group, n in zip(groups, shape, strict=True):
            if len(group) == 1 and (group[0] not in sizes or (sizes[group[0]] == 1 and group[0] in loose)):
                sizes[group[0]] = n
    _solve(op, rule, [(group, n) for groups, shape in every for group, n in zip(groups, shape, strict=True)], sizes)
    for groups, shape in every:
        for i, (group, n) in enumerate(zip(groups, shape, strict=True)):
            if len(group) == 1 and n == 1 != sizes[group[0]] and group[0] in loose:
                groups[i] = ()
            elif prod(sizes[letter] for letter in group) != n:
                known = ", ".join(f"{letter}={sizes[letter]}" for letter in group)
                raise RuleError(f'{op}: dim {i} has size {n}, "{rule}" wants {known or 1}')
    return sizes


def _solve(op: Op, rule: Rule, compounds: list[tuple[Group, int]], sizes: dict[str, int]) -> None:
    """Sizes of the letters that stand nowhere alone, each from a compound in which all others are known."""
    while compounds:
        left: list[tuple[Group, int]] = []
        for group, n in compounds:
            unknown = [letter for letter in group if letter not in sizes]
            if len(unknown) > 1:
                left.append((group, n))
            elif unknown:
                sizes[unknown[0]] = n // max(prod(sizes[letter] for letter in group if letter != unknown[0]), 1)
        if len(left) == len(compounds):
            raise RuleError(f'{op}: the sizes of {" and ".join(left[0][0])} in "{rule}" do not follow')
        compounds = left
