"""The rule language: how an op carries layouts, one line an op, in dimension-mapping notation.

    rule("mm", "m k, k n -> m n", sum="k", linear="each")

A term spells an operand or a result, one group a dim: a letter is a dim, `*a` a run of dims (only runs broadcast),
`(g r)` a dim made of two, major first, `d=4` a letter with its size, `1` a dim of one element, `.` a 0-d operand,
`?(n)` an operand that may be absent, `[x]` a list of operands. A capital letter is a dim that cannot be split. One
result term serves all results of an op that returns a list. The options are fields of `Rule`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from samite.errors import RuleError, RuleMissing, nearest
from samite.ir.graph import Op
from samite.rules.notation import Notation, letters, parse

__all__ = ["Rule", "find_rule", "operand_sets", "rule", "rules"]


@dataclass(frozen=True)
class Rule:
    """How one op carries layouts. Raises RuleError where the options do not fit the notation.

    `text` is the notation, or a function that gives it for a call (ops whose arguments move dims). Options of such a
    rule may name letters that some calls lack.
    `sum`, `max`, `min`, `prod`: letters that are reduced; split, they leave the result owed.
    `whole`: letters that cannot be split. `plain`: letters that must be one contiguous factor if split.
    `window`: letters that lie over each other, "x y | u v", as input and output of a convolution. If one is split then
        so are the others, over the same axes, each as one contiguous factor; `expand` for one of them fetches what a
        rank's part of one needs of another.
    `at`: the argument that says at which dims the letters beside a run sit; `keepdim` leaves a 1.
    `linear`: operand sets that may be owed (sum) together over axes that no letter uses, "0 1 | 0 2"; "each" is every
        operand alone, "all" is all together; a function gives it for a call. If a summed letter is split, the operands
        of its set that lack it become owed too, so that a bias counts once.
    `increasing`, `decreasing`: likewise operand sets that may be owed as max or min, for the op grows (falls) with them
        together: a largest (smallest) element stays one, or becomes the other. It must take infinities too, and the
        ends of the integers' range, which stand for no element.
    `indexes`: letters addressed by value. They need no masks, and may be split where only a result has them.
    `padding`: operand -> what its padding must hold, for kernels that fail on some: an index must be in range, a
        divisor not 0. An int is for operands of integers alone, a float for any.
    `local`: `fn(shards, *operands, **literals)` in torch replaces the op on shards, where literals or places change.
    `expand`: letter -> such a function, with explicit collectives, used when that letter is split.
    `view`: the op only regroups elements in order; `view(op)` gives the result's sizes. Such a rule has no text.
    """

    op: str
    text: str | Callable[[Op], str] = ""
    sum: str = ""
    max: str = ""
    min: str = ""
    prod: str = ""
    whole: str = ""
    plain: str = ""
    window: str = ""
    at: str = ""
    linear: str | Callable[[Op], str] = ""
    increasing: str | Callable[[Op], str] = ""
    decreasing: str | Callable[[Op], str] = ""
    indexes: str = ""
    padding: Mapping[int, float] = field(default_factory=dict[int, float])
    local: Callable[..., Any] | None = None
    expand: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    view: Callable[[Op], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.view):
            raise RuleError(f"{self.op}: a rule has a notation or is a view", help="give one of the two")
        if isinstance(self.text, str) and self.text:
            self._check(self._parsed)
            self._check_options(self._parsed)

    def __str__(self) -> str:
        if self.view is not None:
            return "view"
        return self.text if isinstance(self.text, str) else f"{self.text.__name__}(op)"

    def notation(self, op: Op) -> Notation:
        """The notation of this call. Raises RuleError if it loses a letter."""
        if isinstance(self.text, str):
            return self._parsed
        found = parse(self.text(op))
        self._check(found)
        return found

    @cached_property
    def _parsed(self) -> Notation:
        assert isinstance(self.text, str)
        return parse(self.text)

    @cached_property
    def partners(self) -> Mapping[str, tuple[str, ...]]:
        """By letter of a window the others."""
        windows = [window.split() for window in self.window.split("|") if window.strip()]
        if any(len(window) < 2 for window in windows):
            raise RuleError(f"{self.op}: {self.window!r}, but a window has two letters", help='write "x y | u v"')
        return {x: tuple(y for y in window if y != x) for window in windows for x in window}

    @property
    def _accounted(self) -> set[str]:
        """The letters that a result may lack."""
        lost = f"{self.sum} {self.max} {self.min} {self.prod} {self.whole} {' '.join(self.expand)}"
        return _words(lost) | set(self.partners)

    def _check(self, notation: Notation) -> None:
        for result in notation.results:
            if any(notation.sizes.get(letter) == 0 for letter in letters([result])):
                continue  # there is nothing in it
            lost = letters(notation.operands) - letters([result]) - self._accounted
            lost = {letter for letter in lost if not letter[0].isupper()}
            if lost:
                raise RuleError(
                    f"{self.op}: {', '.join(sorted(lost))} is missing in a result of {str(self)!r}",
                    help="say sum, max, min, prod, whole or expand for it",
                )

    def _check_options(self, notation: Notation) -> None:
        named = self._accounted | _words(f"{self.plain} {self.indexes}")
        unknown = named - letters(notation.operands) - letters(notation.results)
        if unknown:
            raise RuleError(f"{self.op}: {', '.join(sorted(unknown))} is in no term of {str(self)!r}")
        numbers = [*self.padding]
        for option in ("linear", "increasing", "decreasing"):
            sets: Any = getattr(self, option)
            words = [] if callable(sets) or sets in ("all", "each") else sets.replace("|", " ").split()
            if wrong := [word for word in words if not word.isdigit()]:
                raise RuleError(
                    f"{self.op}: {option} has {wrong[0]!r}",
                    help='write operand sets like "0 1 | 0 2", or "each", "all"',
                )
            numbers += map(int, words)
        beyond = [i for i in numbers if i >= len(notation.operands)]
        if beyond:
            raise RuleError(f"{self.op}: {str(self)!r} has no operand {beyond[0]}", help="operands count from 0")


def operand_sets(text: str, operands: int) -> tuple[tuple[int, ...], ...]:
    """ "0 1 | 0 2" as sets of operand numbers; "all" and "each" of so many operands."""
    if text == "all":
        return (tuple(range(operands)),)
    if text == "each":
        return tuple((i,) for i in range(operands))
    return tuple(tuple(int(i) for i in part.split()) for part in text.split("|") if part.strip())


def _words(text: str) -> set[str]:
    return set(text.replace("*", "").split())


_rules: dict[str, Rule] = {}


def rule(op: str, text: str | Callable[[Op], str] = "", /, **options: Any) -> Rule:
    """Define the rule of `torch.ops.aten.<op>` ("mm", "add.Tensor"), or of an op of another namespace ("my_lib::op").

    A second rule of one op is refused: RuleError.
    """
    name = op.replace("::", ".") if "::" in op else f"aten.{op}"
    if name in _rules:
        raise RuleError(f'{op} has a rule already: "{_rules[name]}"', help="remove one of the two")
    made = _rules[name] = Rule(name, text, **options)
    return made


def rules() -> Mapping[str, Rule]:
    """All rules by the full name of their op ("aten.mm")."""
    importlib.import_module("samite.rules.tables")  # the tables register themselves
    return _rules


def find_rule(op: Op, line: str = "") -> Rule:
    """The rule of an op. Raises RuleMissing with the user's line and how to register one."""
    found = rules().get(op.name)
    if found is None:
        named = op.name.replace(".", "::", 1)
        raise RuleMissing(
            f"{op}: no sharding rule",
            where=line,
            help=f'register one: samite.rules.rule("{named}", "*a -> *a"); {nearest(op.name, _rules)}',
        )
    return found
