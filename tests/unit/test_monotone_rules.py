"""A largest or smallest element that is owed stays owed through ops that grow or fall with it, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from samite.layout import Layout
from samite.rules.binding import bind
from samite.rules.planning import plan_op
from samite.testing.rulecheck.sample import one_op

X, N = torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.int64)


def owed(name: str, args: tuple[Any, ...], kinds: str, **kwargs: Any) -> str:
    """What the result owes if the operands owe these, or "" if they are settled first."""
    op = one_op(f"aten.{name}", args, kwargs)
    have = [
        Layout.parse(f"[4, 6] {kind}(a)") if kind != "-" else Layout.replicated(type.shape)
        for kind, type in zip(kinds.split(), op.operands, strict=True)
    ]
    made = plan_op(bind(op), have, {"a": 2})
    return made.results[0].kind if list(made.needs) == have else ""


@pytest.mark.parametrize(
    "name, args, kinds, kind",
    [
        ("relu", (X,), "max", "max"),
        ("exp", (X,), "min", "min"),
        ("neg", (X,), "max", "min"),
        ("neg", (X,), "min", "max"),
        ("clamp", (N, -1, 1), "max", "max"),
        ("mul.Scalar", (X, 2.0), "max", "max"),
        ("mul.Scalar", (X, -2.0), "max", "min"),
        ("add.Tensor", (X, X), "max -", "max"),
        ("sub.Tensor", (X, X), "- max", "min"),
        ("maximum", (X, X), "min -", "min"),
        ("where.self", (X > 0, X, X), "- max max", "max"),
        ("permute", (X, [1, 0]), "max", "max"),
        ("select.int", (X, 0, 1), "min", "min"),
        ("view", (X, [24]), "prod", "prod"),
    ],
)
def test_stays_owed(name: str, args: tuple[Any, ...], kinds: str, kind: str) -> None:
    assert owed(name, args, kinds) == kind


@pytest.mark.parametrize(
    "name, args, kinds, kwargs",
    [
        ("abs", (X,), "max", {}),
        ("log", (X,), "max", {}),  # of no element, -inf, it is NaN
        ("exp", (X,), "sum", {}),
        ("neg", (N,), "max", {}),  # the end of the integers' range has no opposite
        ("add.Scalar", (N, 1), "max", {}),
        ("mul.Scalar", (X, 0.0), "max", {}),
        ("mul.Tensor", (X, X), "max -", {}),
        ("add.Tensor", (X, X), "max max", {}),
        ("add.Tensor", (X, X), "- max", {"alpha": -1.0}),
        ("sub.Tensor", (X, X), "- max", {"alpha": -1.0}),
        ("amin", (X, [0]), "max", {}),
        ("permute", (X, [1, 0]), "prod", {}),
    ],
)
def test_is_settled(name: str, args: tuple[Any, ...], kinds: str, kwargs: dict[str, Any]) -> None:
    assert owed(name, args, kinds, **kwargs) == ""


def test_one_kind_at_a_time() -> None:
    """A summed letter that is split leaves a sum, whatever the operand owed."""
    op = one_op("aten.select.int", (X, 0, 1), {})
    made = plan_op(bind(op), [Layout.parse("[4:b, 6] max(a)")], {"a": 2, "b": 2})
    assert not (made.needs[0].owed and made.results[0].kind == "sum")
