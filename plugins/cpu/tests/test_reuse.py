"""Values written over dying ones: every op of the table by itself, and random programs against plain execution."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import argument, program, split
from samite.hal.program import Program, Result
from samite.lowering import to_fx
from samite.mesh import Mesh
from samite_cpu.executable import AtenExecutable
from samite_cpu.reuse import FRESH, OUT, plan

ONE = Mesh(("dp",), (1,))
Body = Callable[..., tuple[torch.Tensor, ...]]


class Slot:
    """State with spare memory, as workers have it."""

    def __init__(self, value: torch.Tensor, spare: torch.Tensor | None = None) -> None:
        self.value, self._spare = value, spare

    def spare(self) -> torch.Tensor | None:
        return self._spare


def compiled(body: Body, inputs: list[torch.Tensor], state: int = 0) -> Program:
    """The program of a function whose first arguments are state, replaced by its first results."""
    arguments = [
        argument(f"x{i}", split(*x.shape), "state" if i < state else "input", str(x.dtype).removeprefix("torch."))
        for i, x in enumerate(inputs)
    ]
    results = [
        Result(f"y{i}", str(y.dtype).removeprefix("torch."), split(*y.shape), i if i < state else -1)
        for i, y in enumerate(body(*inputs))
    ]
    return program(body, arguments, results, ONE)


def execute(given: Program, inputs: list[torch.Tensor], slots: list[Slot] | None = None) -> list[torch.Tensor]:
    outputs, event = AtenExecutable.compile(given).bind(slots or [], None, 0).run(inputs)
    event.wait()
    return outputs


def source(given: Program) -> str:
    return AtenExecutable.compile(given)._code.source


SAMPLES: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "addcdiv": lambda op, x, y: op(x, y, x),
    "addcmul": lambda op, x, y: op(x, y, x, value=0.5),
    "clamp": lambda op, x, y: op(x, 0.3, 0.7),
    "clamp.Tensor": lambda op, x, y: op(x, y, None),
    "lerp.Scalar": lambda op, x, y: op(x, y, 0.3),
    "lerp.Tensor": lambda op, x, y: op(x, y, x),
    "pow.Tensor_Scalar": lambda op, x, y: op(x, 3),
    "where.self": lambda op, x, y: op(x > 0.5, x, y),
    "threshold_backward": lambda op, x, y: op(x, y, 0.5),
    "gelu_backward": lambda op, x, y: op(x, y, approximate="tanh"),
    "bitwise_not": lambda op, x, y: op((x * 9).to(torch.int64)),
    "logical_not": lambda op, x, y: op(x > 0.5),
    **{f"{name}.Scalar": lambda op, x, y: op(x, 3.0) for name in ("add", "sub", "mul", "div")},
    **dict.fromkeys(("clamp_max", "clamp_min"), lambda op, x, y: op(x, 0.5)),
}
UNARY = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "gelu", "log", "log1p", "log2", "neg", "reciprocal"),
    *("round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "tanh", "trunc"),
)


@pytest.mark.parametrize("name", sorted(OUT))
@pytest.mark.parametrize("strided", [False, True])
def test_every_op_may_write_over_each_of_its_operands(name: str, strided: bool) -> None:
    """The program makes its operands itself, so each may be written over; the result must not change."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    sample = SAMPLES.get(name) or ((lambda op, x, y: op(x)) if name in UNARY else (lambda op, x, y: op(x, y)))

    def body(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (sample(op, x + 0.1, torch.add(y, 0.2)),)

    inputs = [torch.rand(5, 7), torch.rand(5, 7)]
    if strided:
        inputs = [torch.rand(7, 5).T, torch.rand(10, 14)[::2, ::2]]
    given = compiled(body, inputs)
    assert re.search(rf"aten_{packet}_\w+\(.*(out|grad_input)=", source(given)), "the op was not rewritten"
    (ours,), (theirs,) = execute(given, inputs), body(*inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_all_named_ops_exist() -> None:
    for name in FRESH:
        packet, _, overload = name.partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
        assert all(result.alias_info is None for result in schema.returns), name
    for name, overload in OUT.items():
        getattr(getattr(torch.ops.aten, name.partition(".")[0]), overload)


Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MENU: list[Op] = [
    torch.add,
    torch.mul,
    lambda x, y: x - 2 * y,
    lambda x, y: x.tanh(),
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.maximum(x, y),
    lambda x, y: x @ y,
    lambda x, y: x.softmax(dim=1),
    lambda x, y: x.T,
    lambda x, y: x.T.reshape(-1).view(4, 4),
    lambda x, y: x[0].expand(4, 4),
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: x[:, :1] + y,
    lambda x, y: torch.addcmul(x, y, y, value=0.1),
    lambda x, y: torch.lerp(x, y, 0.25),
    lambda x, y: torch.split(x, 2)[1].repeat(2, 1),
    lambda x, y: torch.native_layer_norm(x, [4], None, None, 1e-5)[0],
]


@settings(max_examples=150)
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from(MENU), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=14)
    )
    kept = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))

    def body(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for op, i, j in steps:  # recent values are read more often, so that more die
            values.append(op(values[-1 - i % len(values) // 2], values[-1 - j % len(values)]))
        return (values[-1], *(values[k % len(values)] + 0 for k in kept), values[-1 - kept[0] % 2])

    inputs = [torch.randn(4, 4), torch.randn(4, 4)]
    before = [x.clone() for x in inputs]
    given = compiled(body, inputs, state=2)
    spares = [torch.full((4, 4), 7.0) for _ in inputs]
    slots = [Slot(x, spare) for x, spare in zip(inputs, spares, strict=True)]
    expected = body(*inputs)
    outputs = execute(given, [], slots)
    for ours, theirs in zip([slots[0].value, slots[1].value, *outputs], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True)), "inputs are not the program's"


def test_new_state_is_written_to_its_spare_memory() -> None:
    def step(w: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (w - 0.1 * gradient,)

    w, spare = torch.ones(3), torch.zeros(3)
    slot = Slot(w, spare)
    execute(compiled(step, [w, w], state=1), [torch.ones(3)], [slot])
    assert slot.value is spare
    assert spare.tolist() == pytest.approx([0.9] * 3)
    assert w.tolist() == [1.0] * 3


def test_state_without_spare_memory_is_new_memory() -> None:
    slot = Slot(torch.ones(3))
    old = slot.value
    execute(compiled(lambda w: (w * 2,), [old], state=1), [], [slot])
    assert slot.value.tolist() == [2.0] * 3
    assert old.tolist() == [1.0] * 3


def test_a_value_that_is_also_an_output_is_not_written_to_spare_memory() -> None:
    spare = torch.zeros(3)
    slot = Slot(torch.ones(3), spare)

    def twice(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = w + 1
        return new, new

    (output,) = execute(compiled(twice, [slot.value], state=1), [], [slot])
    assert output.data_ptr() != spare.data_ptr()
    assert output.tolist() == [2.0] * 3


def test_what_is_reused_and_what_is_not() -> None:
    def body(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.exp()  # an input is never written over
        b = a.neg()  # over a
        c = b.T  # a view of b, which is read later
        d = b.tanh()  # so not over b
        e = c + d  # over d; c is a view
        return (e,)

    graph = to_fx(given := compiled(body, [torch.ones(2, 2)]))
    assert sorted(str(node.target) for node in plan(graph, given)) == ["aten.add.Tensor", "aten.neg.default"]


def test_a_program_of_a_scalar() -> None:
    x = torch.tensor(2.0)
    assert execute(compiled(lambda x: ((x + 1) * 3,), [x]), [x])[0].item() == 9
