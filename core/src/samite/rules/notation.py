"""The notation of rules, parsed: "*a (g r) s, ?(n), [x] -> *a n".

A term spells one operand or result, one group a dim. `Rule` (language.py) says what the words mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    """Operands in the order of the op's tensor arguments, results, and the sizes that letters were written with."""

    operands: tuple[Term, ...]
    results: tuple[Term, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


def letters(terms: Iterable[Term]) -> set[str]:
    """All letters of some terms; runs without their star."""
    return {letter.lstrip("*") for term in terms for group in term.groups for letter in group}


def is_run(group: Group) -> bool:
    return group[:1] != () and group[0].startswith("*")


_LETTER = r"[A-Za-z]\w*(?:=\d+)?"
_GROUP = re.compile(rf"\(\s*({_LETTER}(?:\s+{_LETTER})*)\s*\)|(\*[A-Za-z]\w*|{_LETTER})|(1)(?!\w)")


def parse(text: str) -> Notation:
    """Raises RuleError if the text is no notation, with the word that is none."""
    operands, arrow, results = text.partition("->")
    if not arrow or "->" in results:
        raise RuleError(f"{text!r} is no notation", help='write it like "m k, k n -> m n"')
    sizes: dict[str, int] = {}
    return Notation(_terms(operands, text, sizes), _terms(results, text, sizes) or (Term(()),), sizes)


def _terms(side: str, text: str, sizes: dict[str, int]) -> tuple[Term, ...]:
    return tuple(_term(word.strip(), text, sizes) for word in side.split(",")) if side.strip() else ()


def _term(word: str, text: str, sizes: dict[str, int]) -> Term:
    if optional := word.startswith("?(") and word.endswith(")"):
        word = word[2:-1].strip()
    if listed := word.startswith("[") and word.endswith("]"):
        word = word[1:-1].strip()
    if word == "":
        raise RuleError(f"{text!r} has an empty term", help='write a 0-d operand as "."')
    groups: list[Group] = []
    rest = "" if word == "." else word
    while rest:
        match = _GROUP.match(rest)
        if match is None:
            raise RuleError(f"{rest!r} is no dim, in {text!r}", help='a dim is "m", "*a", "(g r)" or "1"; 0-d is "."')
        spelled = match[1].split() if match[1] else [match[2]] if match[2] else []
        groups.append(tuple(_read(letter, text, sizes) for letter in spelled))
        rest = rest[match.end() :].lstrip()
    found = [letter for group in groups for letter in group]
    if twice := sorted({letter for letter in found if found.count(letter) > 1}):
        raise RuleError(f"{twice[0]!r} is twice in one term of {text!r}", help="name each dim of a tensor once")
    return Term(tuple(groups), optional, listed)


def _read(word: str, text: str, sizes: dict[str, int]) -> str:
    """The letter of "d" or "d=4"; its size goes to `sizes`."""
    letter, stated, size = word.partition("=")
    if stated and sizes.setdefault(letter, int(size)) != int(size):
        raise RuleError(f"{letter!r} has two sizes in {text!r}")
    return letter
