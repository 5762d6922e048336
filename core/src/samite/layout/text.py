"""Layouts as text, for IR attributes and people: `[8:dp, 4, (3 16:tp)]`, `[8, 4] sum(tp)`, `[8] at pp=1`, `[]`.

The grammar::

    layout    = "[" [dim {", " dim}] "]" [" " kind "(" axes ")"] [" at " home]
    dim       = factor | "(" [factor {" " factor}] ")"       major to minor
    factor    = size [":" axes]
    axes      = axis {"." axis}                              outermost first; owed ones by name
    home      = axis "=" index {"." axis "=" index}          by name
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from samite.errors import LayoutError
from samite.layout.factor import Dim, Factor

__all__ = ["parse", "spell"]

_AXES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FACTOR = re.compile(rf"(\d+)(?::({_AXES}))?")
_PIN = r"[^\W\d]\w*=\d+"
_LAYOUT = re.compile(rf"\[(.*)\](?: ([a-z]+)\(({_AXES})\))?(?: at ({_PIN}(?:\.{_PIN})*))?")


def spell(dims: Iterable[Dim], kind: str, owed: Iterable[str], at: Iterable[tuple[str, int]]) -> str:
    """The text of a layout with these parts."""
    text = f"[{', '.join(map(_spell_dim, dims))}]"
    if kind:
        text += f" {kind}({'.'.join(sorted(owed))})"
    home = ".".join(f"{axis}={index}" for axis, index in at)
    return f"{text} at {home}" if home else text


def _spell_dim(dim: Dim) -> str:
    factors = " ".join(f"{f.size}:{'.'.join(f.axes)}" if f.axes else str(f.size) for f in dim)
    return factors if len(dim) == 1 else f"({factors})"


def parse(text: str) -> tuple[tuple[Dim, ...], str, frozenset[str], tuple[tuple[str, int], ...]]:
    """The parts of the layout that a text spells. Raises LayoutError if it spells none."""
    if not (whole := _LAYOUT.fullmatch(text)):
        raise LayoutError(f"{text!r} is not a layout", help='write it like "[8:dp, 4, (3 16:tp)] sum(ep) at pp=1"')
    inside, kind, owed, home = whole.groups()
    dims = tuple(_parse_dim(dim, text) for dim in inside.split(", ")) if inside else ()
    pins = (pin.split("=") for pin in home.split(".")) if home else ()
    at = tuple(sorted((axis, int(index)) for axis, index in pins))
    return dims, kind or "", frozenset(owed.split(".") if owed else ()), at


def _parse_dim(dim: str, text: str) -> Dim:
    bracketed = dim.startswith("(") and dim.endswith(")")
    words = (dim[1:-1].split(" ") if dim != "()" else []) if bracketed else [dim]
    factors: list[Factor] = []
    for word in words:
        if not (match := _FACTOR.fullmatch(word)):
            raise LayoutError(f"{word!r} is no factor, in layout {text!r}", help='write it like "16" or "16:tp.dp"')
        factors.append(Factor(int(match[1]), tuple(match[2].split(".")) if match[2] else ()))
    return tuple(factors)
