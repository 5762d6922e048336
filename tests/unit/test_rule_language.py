"""The notation and the options of rules, what they refuse, and what a call's dims are under them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from samite.errors import RuleError, RuleMissing
from samite.ir.context import TensorType
from samite.ir.graph import Op, Slot, intern_op
from samite.rules import Rule, find_rule, language, rule, rules
from samite.rules.binding import Bound, bind
from samite.rules.language import operand_sets
from samite.rules.notation import Term, is_run, parse
from samite.testing.rulecheck.sample import one_op


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(language, "_rules", dict(rules()))
    bind.cache_clear()
    yield
    bind.cache_clear()


# ---- notation ---------------------------------------------------------------------------------------


def test_terms() -> None:
    made = parse("*a (g r) s, ?(n), [x 1], . -> *a n, (K d=4)")
    assert made.operands == (
        Term((("*a",), ("g", "r"), ("s",))),
        Term((("n",),), optional=True),
        Term((("x",), ()), list=True),
        Term(()),
    )
    assert made.results == (Term((("*a",), ("n",))), Term((("K", "d"),)))
    assert made.sizes == {"d": 4}


def test_no_operands_and_0d_results() -> None:
    assert parse(" -> *a").operands == ()
    assert parse("k, k -> .").results == parse("k, k ->").results == (Term(()),)
    assert is_run(("*a",))
    assert not is_run(())
    assert not is_run(("g", "r"))


@pytest.mark.parametrize(
    "text",
    [
        "m k, k n",  # no arrow
        "m -> n -> m",  # two arrows
        "m (k -> m k",  # an open compound
        "m k) -> m k",
        "(m *a) -> m",  # a run in a compound
        "m 2 -> m",  # only 1 is a literal
        "m 1x -> m",
        "m, , n -> m n",  # an empty term
        "?() -> ",
        "m m -> m",  # a diagonal
        "m (k m) -> m k",
        "d=4 -> d=5",  # two sizes
        "m-n -> m",
    ],
)
def test_malformed_notation(text: str) -> None:
    with pytest.raises(RuleError):
        parse(text)


def test_a_malformed_notation_names_what_is_wrong() -> None:
    with pytest.raises(RuleError, match=r"'\(k' is no dim, in 'm \(k -> m'"):
        parse("m (k -> m")


# ---- rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, lost",
    [("m k, k n -> m n", "k"), ("*a d -> *a", "d"), ("*a -> .", "a"), ("(g r) -> g", "r"), ("m n -> m n, m", "n")],
)
def test_a_lost_letter(text: str, lost: str) -> None:
    with pytest.raises(RuleError, match=f"my.op: {lost} is missing in a result"):
        Rule("my.op", text)


@pytest.mark.parametrize("option", ["sum", "max", "min", "prod", "whole"])
def test_a_letter_may_be_lost_where_the_rule_says_how(option: str) -> None:
    Rule("my.op", "m k, k n -> m n", **{option: "k"})
    Rule("my.op", "m k, k n -> m n", expand={"k": lambda *_: None})
    Rule("my.op", "m K, K n -> m n")


@pytest.mark.parametrize(
    "options",
    [
        {"sum": "k"},
        {"plain": "k"},
        {"indexes": "k"},
        {"expand": {"k": lambda *_: None}},
        {"linear": "0 2"},
        {"linear": "all each"},
        {"increasing": "0 2"},
        {"decreasing": "first"},
        {"padding": {2: 0}},
        {"view": lambda op: (1,)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_do_not_fit(options: dict[str, object]) -> None:
    with pytest.raises(RuleError):
        Rule("my.op", "m, m -> m", **options)  # pyright: ignore[reportArgumentType]


def test_a_rule_has_a_notation_or_is_a_view() -> None:
    with pytest.raises(RuleError, match="a notation or is a view"):
        Rule("my.op")


def test_a_second_rule_is_refused() -> None:
    with pytest.raises(RuleError, match='mm has a rule already: "m k, k n -> m n"'):
        rule("mm", "m k, k n -> m n", sum="k")


def test_names() -> None:
    assert rule("my_op.out", "*a -> *a").op == "aten.my_op.out"
    assert rule("my_lib::op", "*a -> *a").op == "my_lib.op"
    assert {"aten.my_op.out", "my_lib.op"} <= set(rules())


def test_an_op_without_a_rule() -> None:
    op = intern_op("aten.sincos", (), (), ())
    with pytest.raises(RuleMissing) as caught:
        find_rule(op, "train.py:41")
    assert str(caught.value).startswith("sincos: no sharding rule   (train.py:41)")
    assert 'rule("aten::sincos"' in caught.value.help
    assert '"aten.sin"' in caught.value.help


def test_a_notation_made_for_a_call_is_checked_too() -> None:
    rule("my_lib::lossy", lambda op: "m k -> m")
    with pytest.raises(RuleError, match="k is missing in a result"):
        find_rule(intern_op("my_lib.lossy", (), (), ())).notation(intern_op("my_lib.lossy", (), (), ()))


@pytest.mark.parametrize(
    "linear, sets",
    [("", ()), ("all", ((0, 1, 2),)), ("each", ((0,), (1,), (2,))), ("0 1 | 0 2", ((0, 1), (0, 2)))],
)
def test_operand_sets(linear: str, sets: tuple[tuple[int, ...], ...]) -> None:
    assert operand_sets(linear, 3) == sets


# ---- binding ----------------------------------------------------------------------------------------


def bound(name: str, *args: object, **kwargs: object) -> Bound:
    return bind(one_op(name, args, kwargs))


def spelled(groups: tuple[tuple[str, ...], ...]) -> str:
    return " ".join("1" if not g else g[0] if len(g) == 1 else f"({' '.join(g)})" for g in groups)


def rand(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def test_runs_are_aligned_right_and_broadcast() -> None:
    made = bound("aten.add.Tensor", rand(7, 1, 3), rand(4, 3))
    assert [spelled(t) for t in made.operands] == ["a0 1 a2", "a1 a2"]
    assert spelled(made.results[0]) == "a0 a1 a2"
    assert made.sizes == {"a0": 7, "a1": 4, "a2": 3}


def test_dims_of_one_that_do_not_broadcast_keep_their_letter() -> None:
    made = bound("aten.add.Tensor", rand(7, 1), rand(1, 1))
    assert [spelled(t) for t in made.operands] == ["a0 a1", "1 a1"]


@pytest.mark.parametrize("dim, keepdim, operand, result", [
    (0, False, "d a0 a1", "a0 a1"),
    (-1, True, "a0 a1 d", "a0 a1 1"),
    (1, True, "a0 d a1", "a0 1 a1"),
])  # fmt: skip
def test_letters_sit_where_the_argument_says(dim: int, keepdim: bool, operand: str, result: str) -> None:
    made = bound("aten.max.dim", rand(7, 4, 3), dim, keepdim)
    assert spelled(made.operands[0]) == operand
    assert {spelled(r) for r in made.results} == {result}


@pytest.mark.parametrize("dims, operand", [([2, 0], "r1 a0 r0"), ([-1], "a0 a1 r0"), ([], "r0 r1 r2")])
def test_a_second_run_sits_where_the_argument_says(dims: list[int], operand: str) -> None:
    made = bound("aten.sum.dim_IntList", rand(7, 4, 3), dims)
    assert spelled(made.operands[0]) == operand
    assert set(made.reduced) == {letter for letter in operand.split() if letter[0] == "r"}


def test_a_0d_tensor_has_no_dim_to_name() -> None:
    assert bound("aten._softmax", rand(), 0, False).operands == ((),)
    assert bound("aten.sum.dim_IntList", rand(), [0]).results == ((),)


def test_compounds_follow_from_the_other_terms() -> None:
    made = bound("aten.split.Tensor", rand(7, 12), 4, 1)
    assert spelled(made.operands[0]) == "d0 (K d)"
    assert [spelled(r) for r in made.results] == ["d0 d"] * 3
    assert (made.sizes["K"], made.sizes["d"]) == (3, 4)
    made = bound("aten.split_with_sizes", rand(12), [8, 4])
    assert [spelled(r) for r in made.results] == ["(P0 d)", "d"]
    assert made.sizes == {"K": 3, "d": 4, "P0": 2}


def test_grouped_heads() -> None:
    q, k = rand(2, 6, 3, 4), rand(2, 2, 5, 4)
    made = bound("samite.sdpa", q, k, k, None, True, 1.0, True)
    assert spelled(made.operands[0]) == "b0 (g r) S E"
    assert (made.sizes["g"], made.sizes["r"]) == (2, 3)
    assert made.roles == (0, 1, 2)
    assert not {"S", "T", "E"} & made.splittable
    assert "s" in bound("samite.sdpa", q, k, k, None, False, 1.0, True).splittable


def test_lists_and_absent_operands() -> None:
    made = bound("aten.stack", [rand(7), rand(7)], 1)
    assert made.roles == (0, 0)
    made = bound("aten.index.Tensor", rand(7, 4, 3), [None, torch.zeros(5, dtype=torch.int64)])
    assert [spelled(t) for t in made.operands] == ["d0 k1 d2", "i0"]
    assert spelled(made.results[0]) == "d0 i0 d2"
    made = bound("aten.native_layer_norm", rand(7, 4), [4], None, rand(4), 1e-5)
    assert made.roles == (0, 2)


def test_indices_apart_from_each_other_go_in_front() -> None:
    index = torch.zeros(5, dtype=torch.int64)
    assert spelled(bound("aten.index.Tensor", rand(7, 4, 3), [index, None, index]).results[0]) == "i0 d1"


_library = torch.library.Library("rule_tests", "DEF")
for _signature in ("one(Tensor x)", "two(Tensor x, Tensor y)", "pair(Tensor x)"):
    _library.define(f"{_signature} -> {'(Tensor, Tensor)' if 'pair' in _signature else 'Tensor'}")


def made_op(name: str, *shapes: tuple[int, ...]) -> Op:
    types = tuple(TensorType(shape, "float32") for shape in shapes)
    return intern_op(f"rule_tests.{name}", tuple(map(Slot, range(len(types)))), types, types[:1])


@pytest.mark.parametrize(
    "name, text, shapes, problem",
    [
        ("one", "m n -> m n", [(3,)], "spells 2 dims, the call has 1"),
        ("one", "*a m n -> *a m n", [(3,)], "spells 2 dims and more, the call has 1"),
        ("two", "m, m -> m", [(3,), (4,)], "dim 0 has size 4, .* wants m=3"),
        ("two", "m -> m", [(3,), (3,)], "no term for operand 1"),
        ("one", "(x y) -> (x y)", [(6,)], "sizes of x and y .* do not follow"),
        ("one", "(x y=4) -> (x y)", [(6,)], "dim 0 has size 6"),
        ("pair", "m -> m, m", [(3,)], "has 2 results, the call has 1"),
    ],
)
def test_a_call_that_does_not_fit_its_rule(name: str, text: str, shapes: list[tuple[int, ...]], problem: str) -> None:
    rule(f"rule_tests::{name}", text)
    with pytest.raises(RuleError, match=problem):
        bind(made_op(name, *shapes))
