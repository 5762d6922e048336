"""The notation of rules, parsed: "*a (g r) s, ?(n), [x] -> *a n".

A term spells one operand or result, one group a dim. `Rule` (language.py) says what the words mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from samite.errors import RuleError

__all__ = ["Group", "Notation", "Term", "is_run", "parse"]

Group = tuple[str, ...]
"""The letters of one dim, major first; () is a literal 1; ("*a",) is a run."""


@dataclass(frozen=True)
class Term:
    groups: tuple[Group, ...]
    optional: bool = False
    list: bool = False


@dataclass(frozen=True)
class Notation:
    """Operands in the order of the op's tensor arguments, and results."""

    operands: tuple[Term, ...]
    results: tuple[Term, ...]


def letters(terms: Iterable[Term]) -> set[str]:
    """All letters of some terms; runs without their star."""
    return {letter.lstrip("*") for term in terms for group in term.groups for letter in group}


def is_run(group: Group) -> bool:
    return group[:1] != () and group[0].startswith("*")


_GROUP = re.compile(r"\(\s*([A-Za-z]\w*(?:\s+[A-Za-z]\w*)*)\s*\)|(\*?[A-Za-z]\w*)|(1)(?!\w)")


def parse(text: str) -> Notation:
    """Raises RuleError if the text is no notation, with the word that is none."""
    operands, arrow, results = text.partition("->")
    if not arrow or "->" in results:
        raise RuleError(f"{text!r} is no notation", help='write it like "m k, k n -> m n"')
    return Notation(_terms(operands, text), _terms(results, text) or (Term(()),))


def _terms(side: str, text: str) -> tuple[Term, ...]:
    return tuple(_term(word.strip(), text) for word in side.split(",")) if side.strip() else ()


def _term(word: str, text: str) -> Term:
    if optional := word.startswith("?(") and word.endswith(")"):
        word = word[2:-1].strip()
    if listed := word.startswith("[") and word.endswith("]"):
        word = word[1:-1].strip()
    groups: list[Group] = []
    rest = "" if word == "." else word
    while rest:
        match = _GROUP.match(rest)
        if match is None:
            raise RuleError(f"{rest!r} is no dim, in {text!r}", help='a dim is "m", "*a", "(g r)" or "1"; 0-d is "."')
        groups.append(tuple(match[1].split()) if match[1] else () if match[3] else (match[2],))
        rest = rest[match.end() :].lstrip()
    if word == "":
        raise RuleError(f"{text!r} has an empty term", help='write a 0-d operand as "."')
    found = [letter for group in groups for letter in group]
    if twice := sorted({letter for letter in found if found.count(letter) > 1}):
        raise RuleError(f"{twice[0]!r} is twice in one term of {text!r}", help="name each dim of a tensor once")
    return Term(tuple(groups), optional, listed)
