"""The rule language: how an op carries layouts, one line an op, in dimension-mapping notation.

    rule("mm", "m k, k n -> m n", sum="k", linear="each")

A term spells an operand or a result, one group a dim: a letter is a dim, `*a` a run of dims (only runs broadcast),
`(g r)` a dim made of two, `1` a dim of one element, `.` a 0-d operand, `?(n)` an operand that may be absent, `[x]` a
list of operands. A capital letter is a dim that cannot be split. The options are fields of `Rule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from samite.errors import RuleError, RuleMissing, nearest
from samite.ir.graph import Op

__all__ = ["Group", "Rule", "Spelling", "Term", "find_rule", "parse_spelling", "rule", "rules", "spelled"]

Group = tuple[str, ...]
"""The letters of one dim, major first; () is a literal 1; ("*a",) is a run."""


@dataclass(frozen=True)
class Term:
    groups: tuple[Group, ...]
    optional: bool = False
    list: bool = False


@dataclass(frozen=True)
class Spelling:
    """A parsed notation."""

    operands: tuple[Term, ...]
    results: tuple[Term, ...]

    def letters(self, terms: Iterable[Term]) -> set[str]:
        return {letter for term in terms for group in term.groups for letter in group}


@dataclass(frozen=True)
class Rule:
    """How one op carries layouts.

    `text` is the notation, or a function that gives it for a call (ops whose arguments move dims).
    `sum`, `max`, `min`, `prod`: letters that are reduced; split, they leave the result owed.
    `whole`: letters that cannot be split. `plain`: letters that must be one contiguous factor if split.
    `at`: the argument that says at which positions the letters beside a run sit; `keepdim` leaves a 1.
    `linear`: operand sets that may be owed (sum) together over axes that no letter uses, "0 1 | 0 2"; "each" is every
        operand alone, "all" is all together; a function gives it for a call. If a summed letter is split, the operands
        of its set that lack it become owed too, so that a bias counts once.
    `indexes`: letters addressed by value. They need no masks, and may be split where only a result has them.
    `local`: `fn(shards, *operands, **literals)` in torch replaces the op on shards, where literals or places change.
    `expand`: letter -> such a function, with explicit collectives, used when that letter is split.
    `view`: the op only regroups elements in order; `view(op)` gives the result's sizes.
    """

    op: str
    text: str | Callable[[Op], str]
    sum: str = ""
    max: str = ""
    min: str = ""
    prod: str = ""
    whole: str = ""
    plain: str = ""
    at: str = ""
    linear: str | Callable[[Op], str] = ""
    indexes: str = ""
    local: Callable[..., Any] | None = None
    expand: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    view: Callable[[Op], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.text, str) and self.text:
            self.check(parse_spelling(self.text))

    def check(self, spelling: Spelling) -> None:
        """Refuse a notation that loses a letter without saying how."""
        named = lambda words: set(words.replace("*", "").split())  # noqa: E731
        said = named(f"{self.sum} {self.max} {self.min} {self.prod} {self.whole} {' '.join(self.expand)}")
        operands = {letter.strip("*") for letter in spelling.letters(spelling.operands)}
        for result in spelling.results:
            lost = operands - {letter.strip("*") for letter in spelling.letters([result])} - said
            lost = {letter for letter in lost if not letter[0].isupper()}
            if lost:
                raise RuleError(
                    f"{self.op}: {', '.join(sorted(lost))} is missing in a result of {self.text!r}",
                    help="say sum, max, min, prod, whole or expand for it",
                )
        known = operands | {letter.strip("*") for letter in spelling.letters(spelling.results)}
        unknown = (said | named(f"{self.plain} {self.indexes}")) - known
        if unknown and self.text:  # a notation made for one call need not have every letter
            raise RuleError(f"{self.op}: {', '.join(sorted(unknown))} is in no term of {self.text!r}")

    def spelling(self, op: Op) -> Spelling:
        """The notation for this call."""
        if isinstance(self.text, str):
            return self._parsed
        found = parse_spelling(self.text(op))
        replace(self, text="").check(found)
        return found

    @cached_property
    def _parsed(self) -> Spelling:
        assert isinstance(self.text, str)
        return parse_spelling(self.text)

    def linear_sets(self, op: Op, operands: int) -> tuple[tuple[int, ...], ...]:
        """The operand sets of `linear`, by the rule's operand numbers."""
        text = self.linear(op) if callable(self.linear) else self.linear
        if text == "all":
            return (tuple(range(operands)),)
        if text == "each":
            return tuple((i,) for i in range(operands))
        return tuple(tuple(int(i) for i in part.split()) for part in text.split("|") if part.strip())


_GROUP = re.compile(r"\([^)]*\)|\S+")


def _term(text: str) -> Term:
    text = text.strip()
    optional, listed = text.startswith("?"), text.startswith("[")
    if optional:
        text = text[2:-1]
    if listed:
        text = text[1:-1]
    groups = (word.strip("()").split() for word in _GROUP.findall(text))
    return Term(tuple(() if g == ["1"] else tuple(g) for g in groups if g != ["."]), optional, listed)


def parse_spelling(text: str) -> Spelling:
    """Raises RuleError if it is no notation."""
    operands, arrow, results = text.partition("->")
    if not arrow:
        raise RuleError(f"{text!r} has no '->'", help="a notation reads: operands -> results")
    split = lambda side: tuple(_term(t) for t in side.split(",")) if side.strip() else ()  # noqa: E731
    return Spelling(split(operands), split(results) if results.strip() else (Term(()),))


_rules: dict[str, Rule] = {}


def rule(op: str, text: str | Callable[[Op], str] = "", /, **options: Any) -> Rule:
    """Define the rule of `torch.ops.aten.<op>` ("mm", "add.Tensor"), or of an op named with its namespace.

    A second rule of one op is refused: RuleError.
    """
    name = op if "." in op and op.split(".")[0] in _NAMESPACES else f"aten.{op}"
    if name in _rules:
        raise RuleError(f"{op} has a rule already: {_rules[name].text!r}", help="remove one of the two")
    made = _rules[name] = Rule(op, text, **options)
    return made


_NAMESPACES = ["aten", "samite", "prim", "prims", "vtensor"]


def add_namespace(namespace: str) -> None:
    """Let `rule` name ops of `torch.ops.<namespace>` in full."""
    if namespace not in _NAMESPACES:
        _NAMESPACES.append(namespace)


def rules() -> Mapping[str, Rule]:
    """All rules by the full name of their op ("aten.mm")."""
    import samite.rules.tables  # noqa: F401  (the tables register themselves)

    return _rules


def find_rule(op: Op, line: str = "") -> Rule:
    """The rule of an op. Raises RuleMissing with the user's line and how to register one."""
    found = rules().get(op.name)
    if found is None:
        raise RuleMissing(
            f"{op}: no sharding rule",
            where=line,
            help=f'register one: samite.rules.rule("{op}", "*a -> *a"); {nearest(op.name, _rules)}',
        )
    return found


def spelled(terms: Callable[[Op], tuple[list[str], list[str]]]) -> Callable[[Op], str]:
    """A notation made from lists of groups: `terms(op)` gives those of the first operand and of the result."""

    def text(op: Op) -> str:
        operand, result = terms(op)
        return f"{' '.join(operand)} -> {' '.join(result)}"

    return text
