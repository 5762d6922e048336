"""Layouts as text, for IR attributes and people: `[8:dp, 4, (3 16:tp)]`, `[8, 4:tp.dp] sum(tp)`, `[]`.

The grammar::

    layout    = "[" [dim {", " dim}] "]" [" " kind "(" axes ")"]
    dim       = factor | "(" [factor {" " factor}] ")"       major to minor
    factor    = size [":" axes]
    axes      = axis {"." axis}                              outermost first; owed ones by name
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from samite.errors import LayoutError
from samite.layout.factor import Dim, Factor

__all__ = ["parse", "spell"]

_AXES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FACTOR = re.compile(rf"(\d+)(?::({_AXES}))?")
_LAYOUT = re.compile(rf"\[(.*)\](?: ([a-z]+)\(({_AXES})\))?")


def spell(dims: Iterable[Dim], kind: str, owed: Iterable[str]) -> str:
    """The text of a layout with these parts."""
    text = f"[{', '.join(map(_spell_dim, dims))}]"
    return f"{text} {kind}({'.'.join(sorted(owed))})" if kind else text


def _spell_dim(dim: Dim) -> str:
    factors = " ".join(f"{f.size}:{'.'.join(f.axes)}" if f.axes else str(f.size) for f in dim)
    return factors if len(dim) == 1 else f"({factors})"


def parse(text: str) -> tuple[tuple[Dim, ...], str, frozenset[str]]:
    """The parts of the layout that a text spells. Raises LayoutError if it spells none."""
    if not (whole := _LAYOUT.fullmatch(text)):
        raise LayoutError(f"{text!r} is not a layout", help='write it like "[8:dp, 4, (3 16:tp)] sum(pp)"')
    inside, kind, owed = whole.groups()
    dims = tuple(_parse_dim(dim, text) for dim in inside.split(", ")) if inside else ()
    return dims, kind or "", frozenset(owed.split(".") if owed else ())


def _parse_dim(dim: str, text: str) -> Dim:
    bracketed = dim.startswith("(") and dim.endswith(")")
    words = (dim[1:-1].split(" ") if dim != "()" else []) if bracketed else [dim]
    factors: list[Factor] = []
    for word in words:
        if not (match := _FACTOR.fullmatch(word)):
            raise LayoutError(f"{word!r} is no factor, in layout {text!r}", help='write it like "16" or "16:tp.dp"')
        factors.append(Factor(int(match[1]), tuple(match[2].split(".")) if match[2] else ()))
    return tuple(factors)
