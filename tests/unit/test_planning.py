"""What operands must be and results are, from layouts and a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.errors import LayoutError
from samite.layout import Layout, axes_of, plan
from samite.mesh import Mesh
from samite.rules.binding import Bound, bind
from samite.rules.planning import Mask, OpPlan, plan_between, plan_op, settle
from samite.testing.rulecheck.placements import layouts_of
from samite.testing.rulecheck.plans import plans_of
from samite.testing.rulecheck.sample import one_op

MESH = {"a": 2, "b": 2}
MESHES = [Mesh(("a",), (2,)), Mesh(("a",), (3,)), Mesh(("a", "b"), (2, 2)), Mesh(("b", "a"), (3, 2))]


def rand(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def index(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def call(name: str, *args: object, **kwargs: object) -> Bound:
    return bind(one_op(f"aten.{name}" if "::" not in name else name.replace("::", "."), args, kwargs))


def planned(bound: Bound, *have: str, wish: Sequence[str] = (), mesh: dict[str, int] = MESH) -> OpPlan:
    wishes = [Layout.parse(w).canonical(mesh) for w in wish]
    return plan_op(bound, [Layout.parse(h).canonical(mesh) for h in have], mesh, wishes)


def texts(made: OpPlan) -> str:
    return f"{', '.join(map(str, made.needs))} -> {', '.join(map(str, made.results))}"


# ---- examples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "have, wanted",
    [
        (["[8:a, 4]", "[4, 6]"], "[8:a, 4], [4, 6] -> [8:a, 6]"),
        (["[8, 4]", "[4, 6:b]"], "[8, 4], [4, 6:b] -> [8, 6:b]"),
        (["[8:a, 4]", "[4, 6:b]"], "[8:a, 4], [4, 6:b] -> [8:a, 6:b]"),
        (["[8, 4:a]", "[4:a, 6]"], "[8, 4:a], [4:a, 6] -> [8, 6] sum(a)"),
        (["[8, 4:a]", "[4, 6]"], "[8, 4:a], [4:a, 6] -> [8, 6] sum(a)"),  # a local slice is free
        (["[8:b, 4:a]", "[4:a, 6]"], "[8:b, 4:a], [4:a, 6] -> [8:b, 6] sum(a)"),
        (["[8, 4] sum(a)", "[4, 6:b]"], "[8, 4] sum(a), [4, 6:b] -> [8, 6:b] sum(a)"),
        (["[(2 4:a), 4]", "[4, 6]"], "[(2 4:a), 4], [4, 6] -> [(2 4:a), 6]"),
    ],
)
def test_mm(have: list[str], wanted: str) -> None:
    assert texts(planned(call("mm", rand(8, 4), rand(4, 6)), *have)) == wanted


def test_an_axis_serves_one_letter_and_the_cheaper_operand_moves() -> None:
    made = planned(call("mm", rand(8, 4), rand(4, 6)), "[8:a, 4]", "[4, 6:a]")
    assert texts(made) == "[8:a, 4], [4, 6] -> [8:a, 6]"
    made = planned(call("mm", rand(4, 4), rand(4, 32)), "[4:a, 4]", "[4, 32:a]")
    assert texts(made) == "[4, 4], [4, 32:a] -> [4, 32:a]"


def test_a_bias_counts_once() -> None:
    made = planned(call("addmm", rand(6), rand(8, 4), rand(4, 6)), "[6]", "[8, 4:a]", "[4:a, 6]")
    assert texts(made) == "[6] sum(a), [8, 4:a], [4:a, 6] -> [8, 6] sum(a)"


def test_owed_operands_stay_so_where_the_op_is_linear() -> None:
    add = call("add.Tensor", rand(8, 4), rand(8, 4))
    assert texts(planned(add, "[8, 4] sum(a)", "[8, 4] sum(a)")) == "[8, 4] sum(a), [8, 4] sum(a) -> [8, 4] sum(a)"
    mul = call("mul.Tensor", rand(8, 4), rand(8, 4))
    assert texts(planned(mul, "[8, 4] sum(a)", "[8, 4]")) == "[8, 4] sum(a), [8, 4] -> [8, 4] sum(a)"
    assert planned(mul, "[8, 4] sum(a)", "[8, 4] sum(a)").needs.count(Layout.replicated((8, 4))) == 1
    relu = call("relu", rand(8, 4))
    assert texts(planned(relu, "[8, 4] sum(a)")) == "[8, 4] -> [8, 4]"
    assert texts(planned(add, "[8, 4] prod(a)", "[8, 4]")) == "[8, 4], [8, 4] -> [8, 4]"


def test_reductions() -> None:
    total = call("sum.dim_IntList", rand(8, 4), [0], True)
    assert texts(planned(total, "[8:a, 4:b]")) == "[8:a, 4:b] -> [1, 4:b] sum(a)"
    largest = call("amax", rand(8, 4), [0, 1])
    assert texts(planned(largest, "[8:a, 4:b]")) == "[8:a, 4:b] -> [] max(a.b)"
    # What is owed already cannot be reduced by another kind.
    assert texts(planned(largest, "[8:a, 4] sum(b)")) == "[8:a, 4] -> [] max(a)"


def test_wishes_split_what_no_operand_has() -> None:
    full = call("full", [8, 4], 1.0)
    assert texts(planned(full)) == " -> [8, 4]"
    assert texts(planned(full, wish=["[8:a, 4:b]"])) == " -> [8:a, 4:b]"
    rows = call("embedding_dense_backward", rand(5, 4), index(5), 8, -1, False)
    assert texts(planned(rows, "[5, 4]", "[5]", wish=["[8:a, 4:b]"])) == "[5, 4:b], [5] -> [8:a, 4:b]"


def test_operands_come_before_wishes() -> None:
    made = planned(call("mm", rand(8, 4), rand(4, 6)), "[8:a, 4]", "[4, 6]", wish=["[8, 6:a]"])
    assert texts(made) == "[8:a, 4], [4, 6] -> [8:a, 6]"


def test_views_carry_any_reduction_and_take_wishes() -> None:
    view = call("view", rand(4, 6), [24])
    assert texts(planned(view, "[4:a, 6] max(b)")) == "[4:a, 6] max(b) -> [24:a] max(b)"
    assert texts(planned(view, "[4, 6:a]")) == "[4, 6:a] -> [(4 6:a)]"
    assert texts(planned(view, "[4, 6]", wish=["[24:a]"])) == "[4:a, 6] -> [24:a]"
    assert texts(planned(view, "[4, 6] sum(a)", wish=["[24:a]"])) == "[4, 6] sum(a) -> [24] sum(a)"


def test_a_fused_weight_splits_in_its_parts() -> None:
    split = call("split.Tensor", rand(7, 12), 4, 1)
    assert texts(planned(split, "[7, (3 4:a)]")) == "[7, (3 4:a)] -> [7, 4:a], [7, 4:a], [7, 4:a]"
    cat = call("cat", [rand(7, 4), rand(7, 4)], 1)
    assert texts(planned(cat, "[7, 4:a]", "[7, 4:a]")) == "[7, 4:a], [7, 4:a] -> [7, (2 4:a)]"


def test_whole_letters_are_gathered() -> None:
    made = planned(call("sort", rand(8, 4), 1), "[8:a, 4:b]")
    assert texts(made) == "[8:a, 4] -> [8:a, 4], [8:a, 4]"


def test_plain_letters_take_one_factor() -> None:
    scan = call("cumsum", rand(8), 0)
    assert planned(scan, "[8:a.b]").needs == (Layout.parse("[8:a.b]"),)
    assert planned(scan, "[(2 4:a)]").needs == (Layout.replicated((8,)),)


# ---- masks ------------------------------------------------------------------------------------------


def test_masks_are_for_padding_that_reaches_a_reduction() -> None:
    mm = call("mm", rand(8, 7), rand(7, 6))
    assert planned(mm, "[8, 7:a]", "[7:a, 6]").masks == (Mask(0, 1, 0.0), Mask(1, 0, 0.0))
    assert planned(mm, "[8:a, 7]", "[7, 6:b]").masks == ()
    assert planned(call("mm", rand(7, 8), rand(8, 6)), "[7:a, 8]", "[8, 6]").masks == ()
    largest = call("amax", rand(7, 4), [0])
    assert planned(largest, "[7:a, 4]").masks == (Mask(0, 0, float("-inf")),)
    assert planned(largest, "[7, 4:a]").masks == ()


@pytest.mark.parametrize("name, fill", [("any", False), ("all", True)])
def test_any_and_all_reduce_truth(name: str, fill: bool) -> None:
    """The smallest number is true, so the neutral element is that of the result's dtype."""
    assert planned(call(name, rand(7)), "[7:a]").masks == (Mask(0, 0, fill),)


def test_indices_and_divisors_are_filled_wherever_they_are_padded() -> None:
    rows = call("embedding", rand(8, 4), index(7))
    assert planned(rows, "[8, 4]", "[7:a]").masks == (Mask(1, 0, 0),)
    assert planned(rows, "[8:a, 4:b]", "[7]").masks == ()
    divide = call("floor_divide", index(7), index(7))
    assert planned(divide, "[7:a]", "[7:a]").masks == (Mask(1, 0, 1),)
    assert planned(call("floor_divide", rand(7), rand(7)), "[7:a]", "[7:a]").masks == ()


def test_results_that_are_left_out_owe_nothing() -> None:
    x, w, g = rand(7, 4, 3), rand(6, 4, 1), rand(7, 6, 3)
    geometry = ([1], [0], [1], False, [0], 1)
    made = planned(
        call("convolution_backward", g, x, w, [6], *geometry, [True, False, False]),
        "[7:a, 6, 3]",
        "[7:a, 4, 3]",
        "[6, 4, 1]",
    )
    assert made.results == (Layout.parse("[7:a, 4, 3]"), Layout(()), Layout(()))
    assert made.masks == ()


def test_a_factor_of_one_in_a_compound_is_of_the_letter_that_the_result_splits() -> None:
    # Of the channels (2 2:a.b) times a window of 2 by 2 the operand is (2 8:a 1:b): b owns an element of some letter.
    bound = call("col2im", rand(3, 16, 6), [4, 6], [2, 2], [1, 1], [0, 0], [2, 2])
    made = planned(bound, "[3, 16, 6]", wish=["[3, (2 2:a.b), 4, 6]"])
    assert texts(made) == "[3, (2 8:a 1:b), 6] -> [3, (2 2:a.b), 4, 6]"
    assert plan_between(bound, made.needs, made.results, MESH) == made


# ---- properties -------------------------------------------------------------------------------------

CALLS = [
    call("mm", rand(7, 4), rand(4, 6)),
    call("bmm", rand(3, 4, 6), rand(3, 6, 2)),
    call("addmm", rand(6), rand(7, 4), rand(4, 6)),
    call("add.Tensor", rand(7, 1, 4), rand(6, 4)),
    call("mul.Tensor", rand(7, 4), rand(4)),
    call("where.self", rand(7, 4) > 0, rand(7, 4), rand()),
    call("sum.dim_IntList", rand(7, 4, 6), [0, -1], True),
    call("amax", rand(7, 4), [1]),
    call("_softmax", rand(7, 4), 1, False),
    call("embedding", rand(7, 4), index(3, 2)),
    call("embedding_dense_backward", rand(3, 2, 4), index(3, 2), 7, -1, False),
    call("gather", rand(7, 6), 1, index(7, 4)),
    call("scatter_add", rand(7, 6), 1, index(7, 4), rand(7, 4)),
    call("index.Tensor", rand(7, 6, 4), [None, index(5), index(3, 1)]),
    call("split_with_sizes", rand(7, 12), [6, 3, 3], 1),
    call("cat", [rand(7, 4), rand(7, 8)], 1),
    call("view", rand(4, 6), [2, 12]),
    call("col2im", rand(3, 16, 6), [4, 6], [2, 2], [1, 1], [0, 0], [2, 2]),
    call("transpose.int", rand(7, 4, 6), 0, 2),
    call("expand", rand(7, 1), [3, 7, 4]),
    call("native_layer_norm_backward", rand(7, 4), rand(7, 4), [4], rand(7, 1), rand(7, 1), rand(4), None, [True] * 3),
    call("samite::sdpa_backward", rand(2, 6, 3, 4), rand(2, 6, 3, 4), rand(2, 2, 3, 4), rand(2, 2, 3, 4), None,
         rand(2, 6, 3, 4), rand(2, 6, 3), False, 1.0, True),
    call("full", [7, 4], 0.5),
]  # fmt: skip


@st.composite
def situations(draw: st.DrawFn) -> tuple[Bound, Mesh, list[Layout], list[Layout | None]]:
    bound = draw(st.sampled_from(CALLS))
    mesh = draw(st.sampled_from(MESHES))
    have = [draw(st.sampled_from(layouts_of(t, mesh))) for t in bound.op.operands]
    wish = [draw(st.none() | st.sampled_from(layouts_of(t, mesh, owed=False))) for t in bound.op.results]
    return bound, mesh, have, wish


@settings(max_examples=300, deadline=None)
@given(situations())
def test_partition_finds_the_plan_that_place_chose(
    situation: tuple[Bound, Mesh, list[Layout], list[Layout | None]],
) -> None:
    bound, mesh, have, wish = situation
    made = plan_op(bound, have, mesh, wish)
    assert plan_between(bound, made.needs, made.results, mesh) == made


@settings(max_examples=300, deadline=None)
@given(situations())
def test_placements_lead_to_the_plans_that_are_checked(
    situation: tuple[Bound, Mesh, list[Layout], list[Layout | None]],
) -> None:
    bound, mesh, have, wish = situation
    made = plan_op(bound, have, mesh, wish)
    assert (made.needs, made.results) in _checked(bound, mesh)


@cache
def _checked(bound: Bound, mesh: Mesh) -> set[tuple[tuple[Layout, ...], tuple[Layout, ...]]]:
    return {(made.needs, made.results) for made in plans_of(bound, mesh)}


@settings(max_examples=300, deadline=None)
@given(situations())
def test_each_axis_serves_one_letter(situation: tuple[Bound, Mesh, list[Layout], list[Layout | None]]) -> None:
    bound, mesh, have, wish = situation
    made = plan_op(bound, have, mesh, wish)
    served = Counter(axis for factors in made.given.values() for axis in axes_of(factors))
    assert set(served.values()) <= {1}
    assert set(made.given) <= bound.splittable
    owed = {axis for layout in made.needs for axis in layout.owed}
    for letter, factors in made.given.items():
        if bound.reduced.get(letter) != "sum":  # a bias beside a summed letter owes over its axes
            assert not owed & set(axes_of(factors))


@settings(max_examples=300, deadline=None)
@given(situations())
def test_no_operand_moves_more_than_gathering_it(
    situation: tuple[Bound, Mesh, list[Layout], list[Layout | None]],
) -> None:
    bound, mesh, have, wish = situation
    made = plan_op(bound, have, mesh, wish)
    whole = [Layout.replicated(layout.shape).canonical(mesh) for layout in have]
    assert _moves(have, made.needs, mesh) <= _moves(have, whole, mesh)


def _moves(have: Sequence[Layout], need: Sequence[Layout], mesh: Mesh) -> int:
    return sum(plan(h, n, mesh).elements for h, n in zip(have, need, strict=True))


@settings(max_examples=300, deadline=None)
@given(situations())
def test_layouts_have_the_shapes_of_the_call(situation: tuple[Bound, Mesh, list[Layout], list[Layout | None]]) -> None:
    bound, mesh, have, wish = situation
    made = plan_op(bound, have, mesh, wish)
    assert [layout.shape for layout in made.needs] == [t.shape for t in bound.op.operands]
    assert [layout.shape for layout in made.results] == [t.shape for t in bound.op.results]
    assert all(layout == layout.canonical(mesh) for layout in (*made.needs, *made.results))
    for mask in made.masks:
        assert any(f.padded(mesh) for f in made.needs[mask.operand].dims[mask.dim])


def test_settle() -> None:
    assert settle(Layout.parse("[8:a, 4] sum(b)")) == Layout.parse("[8:a, 4]")
    whole = Layout.parse("[8:a, 4]")
    assert settle(whole) is whole
    assert settle(Layout.parse("[8] sum(b) at a=1")) == Layout.parse("[8] at a=1")


def test_refuses_what_only_some_ranks_hold() -> None:
    add = call("add.Tensor", rand(4), rand(4))
    with pytest.raises(LayoutError, match=r"laid out as \[4\] at a=1, which only some ranks hold"):
        planned(add, "[4]", "[4] at a=1")
    with pytest.raises(LayoutError, match="only some ranks hold"):
        planned(add, "[4]", "[4]", wish=["[4] at a=0"])
