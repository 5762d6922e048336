"""The interpreter against plain execution, and what it says of programs that go wrong."""

from __future__ import annotations

import pickle
import traceback
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from programs import collective, traced
from samite.errors import CollectiveMismatch, OutOfMemory, UnsupportedOp, WorkerError
from samite.ir.graph import Source
from samite.mesh import Mesh
from samite.runtime.interpreter import Code, generate, run, run_lockstep

ONE = Mesh(("dp",), (1,))
TWO = Mesh(("tp",), (2,))


def execute(module: fx.GraphModule, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    code = generate(module, "test")
    return run(code.bind(ONE, 0), inputs, None, code, 0)


def together(module: fx.GraphModule, mesh: Mesh, *inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Every rank's outputs; `inputs` are lists over ranks."""
    code = generate(module, "test")
    mains = [code.bind(mesh, rank) for rank in range(mesh.size)]
    return run_lockstep(mains, [list(column) for column in zip(*inputs, strict=True)], mesh, code)


def test_a_program_with_lists_tuples_and_keywords() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = torch.split(torch.cat([x, y], dim=1), 3, dim=1)
        values, indices = torch.topk(a - 2 * b, 2, dim=1)
        return (values.sum(dim=1, keepdim=True), indices.to(torch.float64), torch.where(a > 0, a, float("-inf")))

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    for ours, theirs in zip(execute(traced(function, x, y), x, y), function(x, y), strict=True):
        assert torch.equal(ours, theirs)


def test_a_function_of_one_result_and_one_of_none_of_its_inputs() -> None:
    graph = fx.Graph()
    graph.placeholder("torch")
    graph.output(graph.call_function(torch.ops.aten.full.default, ([2], 3.0)))
    (result,) = execute(fx.GraphModule(torch.nn.Module(), graph), torch.ones(1))
    assert result.tolist() == [3.0, 3.0]


def test_an_argument_may_have_the_name_of_anything_in_the_text() -> None:
    graph = fx.Graph()
    x = graph.placeholder("aten_neg_default")
    y = graph.placeholder("inputs")
    graph.output(
        (graph.call_function(torch.ops.aten.add.Tensor, (graph.call_function(torch.ops.aten.neg.default, (x,)), y)),)
    )
    assert execute(fx.GraphModule(torch.nn.Module(), graph), torch.ones(1), torch.ones(1))[0].item() == 0


def test_literals_of_a_module() -> None:
    holder, graph = torch.nn.Module(), fx.Graph()
    holder.register_buffer("literal0", torch.arange(3))
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, graph.get_attr("literal0"))),))
    assert execute(fx.GraphModule(holder, graph), torch.ones(3, dtype=torch.int64))[0].tolist() == [1, 2, 3]


def test_values_die_after_their_last_use() -> None:
    alive: list[int] = []
    seen: list[weakref.ref[torch.Tensor]] = []

    class Watch:
        """A communicator that counts which of the tensors it was handed are still alive."""

        def all_reduce(self, x: torch.Tensor, axes: tuple[str, ...], reduce_type: str) -> torch.Tensor:
            alive.append(sum(ref() is not None for ref in seen))
            seen.append(weakref.ref(x))
            return x.clone()

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        for _ in range(4):
            x = collective.all_reduce(x + 1, "dp", "sum")
        return (x,)

    code = generate(traced(function, torch.ones(2)), "test")
    run(code.bind(ONE, 0), [torch.ones(2)], Watch(), code, 0)  # type: ignore[arg-type]
    assert alive == [0, 0, 0, 0]


def test_code_is_picklable_and_runs_elsewhere() -> None:
    code = generate(traced(lambda x: (x.relu(),), torch.ones(2)), "test")
    code.bind(ONE, 0)
    code = pickle.loads(pickle.dumps(code))
    assert run(code.bind(ONE, 0), [torch.tensor([-1.0, 1.0])], None, code, 0)[0].tolist() == [0.0, 1.0]


@given(st.sampled_from(["sum", "max", "min", "prod"]), st.permutations(["a", "b"]), st.integers(1, 3))
def test_collectives_are_what_they_are_called(kind: str, axes: list[str], size: int) -> None:
    mesh, joined = Mesh(("a", "b"), (size, 2)), ",".join(axes)
    parts = mesh.size

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            collective.all_reduce(x, joined, kind),
            collective.all_gather(x, joined, 1, parts),
            collective.reduce_scatter(x, joined, 0, kind, parts),
            collective.all_to_all(x, joined, 0, 1, parts),
            collective.permute(x, joined, [0, parts - 1]),
            collective.axis_index(joined),
            collective.shard(x, joined, 0, parts),
        )

    x = [torch.randn(parts * 2, 3) for _ in range(parts)]
    results = together(traced(function, x[0]), mesh, x)
    peers = mesh.peers(0, axes)
    ordered = [x[rank] for rank in peers]
    total = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "prod": torch.prod}[kind](torch.stack(ordered), 0)
    for place, rank in enumerate(peers):
        reduced, gathered, scattered, exchanged, moved, index, shard = results[rank]
        mine = slice(2 * place, 2 * place + 2)
        torch.testing.assert_close(reduced, total)
        assert torch.equal(gathered, torch.cat(ordered, 1))
        torch.testing.assert_close(scattered, total[mine])
        assert torch.equal(exchanged, torch.cat([peer[mine] for peer in ordered], 1))
        assert torch.equal(moved, ordered[0] if place == parts - 1 else torch.zeros_like(x[0]))
        assert index.dtype == torch.int64
        assert index.item() == place
        assert torch.equal(shard, x[rank][mine])


def test_groups_are_apart() -> None:
    mesh = Mesh(("dp", "tp"), (2, 2))
    x = [torch.full((1,), 10.0**rank) for rank in range(4)]
    results = together(traced(lambda x: (collective.all_reduce(x, "dp", "sum"),), x[0]), mesh, x)
    assert [int(y.item()) for (y,) in results] == [101, 1010, 101, 1010]


def test_an_error_names_the_op_and_the_users_line() -> None:
    module = traced(lambda x, i: (x.index_select(0, i),), torch.ones(3), torch.ones(1, dtype=torch.int64))
    for node in module.graph.nodes:
        node.meta["source"] = Source("train.py:41")
    with pytest.raises(WorkerError, match=r"aten\.index_select\.default: .*out of range") as caught:
        execute(module, torch.ones(3), torch.tensor([7]))
    assert caught.value.where == "train.py:41"
    assert "aten_index_select_default(" in "".join(traceback.format_exception(caught.value)), "the generated line"


def test_memory_that_is_not_there() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.empty.memory_format, ([1 << 58],)),))
    with pytest.raises(OutOfMemory, match=r"aten\.empty"):
        execute(fx.GraphModule(torch.nn.Module(), graph))


def test_ranks_that_ask_for_different_collectives_are_named() -> None:
    mains = []
    for kind in ("sum", "max"):
        code = generate(traced(lambda x, kind=kind: (collective.all_reduce(x, "tp", kind),), torch.ones(2)), "test")
        mains.append(code.bind(TWO, len(mains)))
    with pytest.raises(CollectiveMismatch, match=r"rank 0 asks for all_reduce sum over tp.*rank 1 asks .* max"):
        run_lockstep(mains, [[torch.ones(2)]] * 2, TWO, code)


@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_ranks_that_differ_in_shape_are_named(shape: tuple[int, ...]) -> None:
    module = traced(lambda x: (collective.all_reduce(x, "tp", "sum"),), torch.ones(2))
    with pytest.raises(CollectiveMismatch, match=r"float32\[2\]"):
        together(module, TWO, [torch.ones(2), torch.ones(shape)])


def test_a_rank_that_ends_early_is_named() -> None:
    with_it = generate(traced(lambda x: (collective.all_reduce(x, "tp", "sum"),), torch.ones(2)), "test")
    without = generate(traced(lambda x: (x + 1,), torch.ones(2)), "test")
    with pytest.raises(CollectiveMismatch, match="rank 1 has ended"):
        run_lockstep([with_it.bind(TWO, 0), without.bind(TWO, 1)], [[torch.ones(2)]] * 2, TWO, with_it)


def test_what_is_no_torch_op_is_refused() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(len, (graph.placeholder("x"),)),))
    with pytest.raises(UnsupportedOp, match="len"):
        generate(fx.GraphModule(torch.nn.Module(), graph), "test")


def test_an_op_that_this_process_lacks_says_how_to_import_it() -> None:
    code = generate(traced(lambda x: (x.relu(),), torch.ones(2)), "test")
    foreign = Code(code.name, code.source, code.statements, {"aten_relu_default": "my_ops.relu.default"}, {}, {}, {})
    with pytest.raises(UnsupportedOp, match=r"my_ops\.relu") as caught:
        foreign.bind(ONE, 0)
    assert "worker_imports" in caught.value.help
