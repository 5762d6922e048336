"""Into distributed tensors, between layouts, and out again: values and gradients."""

from __future__ import annotations

import copy
import io
import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samite
from rank_threads import mesh_of, on_ranks, whole
from samite import Partial, Replicate, Shard
from samite.errors import InputError, PlacementError, SamiteError
from samite.tensor import Tensor

X, G = torch.arange(35.0).view(5, 7), torch.randn(5, 7)


def placed(text: str) -> object:
    return {"R": Replicate(), "S": Shard(0), "T": Shard(1), "P": Partial()}[text]


@pytest.mark.parametrize(("source", "target"), list(product("RSTP", "RSTP")))
def test_redistribute_keeps_the_value_and_its_adjoint_the_gradient(source: str, target: str) -> None:
    """The value of a replica, a shard or a sum of terms is the same, and so is what comes back for it. As maps of local
    parts the nine pairs of R, S and P are adjoint: the terms of a sum each get the whole gradient, as replicas do."""
    mesh = mesh_of(tp=3)

    def act() -> None:
        x = samite.tensor(X, mesh, {"tp": placed(source)}, requires_grad=True)
        y = x.redistribute({"tp": placed(target)})
        assert y.placements["tp"] == placed(target)
        torch.testing.assert_close(whole(y), X)
        y.backward(samite.tensor(G, mesh, {"tp": placed("S")}))
        torch.testing.assert_close(whole(x.grad), G)
        if source != target:  # else nothing was done, and the gradient is as it came
            assert x.grad.placements["tp"] == (Replicate() if source == "P" else placed(source))

    on_ranks(mesh, act)


@pytest.mark.parametrize(("source", "target"), list(product("RSP", "RSP")))
def test_local_parts_have_the_adjoint_gradient(source: str, target: str) -> None:
    """<L(x), y> == <x, L'(y)> where L takes the local parts under `source` to those under `target`, in the inner
    product of what they stand for: replicas count once."""
    mesh = mesh_of(tp=2)

    def act() -> tuple[torch.Tensor, ...]:
        rank = samite.tensor([0, 1], mesh, {"tp": Shard(0)}).to_local().item()
        parts = {"R": torch.ones(4, 3), "S": torch.full((2, 3), rank + 1.0), "P": torch.full((4, 3), rank + 2.0)}
        x = parts[source].clone().requires_grad_()
        out = samite.from_local(x, mesh, {"tp": placed(source)}).redistribute({"tp": placed(target)}).to_local()
        weight = {"R": torch.arange(12.0), "S": torch.arange(6.0) + 6 * rank, "P": torch.arange(12.0)}[target]
        out.backward(weight.view(out.shape))
        return x.detach(), x.grad, out.detach(), weight.view(out.shape)

    (x0, g0, y0, w0), (x1, g1, y1, w1) = on_ranks(mesh, act)
    # What stands for the value: one replica, all shards, all terms. A gradient stands for the value of the gradient.
    left = (y0 * w0).sum() + (0 if target == "R" else (y1 * w1).sum())
    right = (x0 * g0).sum() + (0 if source == "R" else (x1 * g1).sum())
    torch.testing.assert_close(left, right)


@given(st.integers(0, 9), st.integers(1, 3), st.sampled_from("RSP"), st.sampled_from("RSP"))
@settings(max_examples=15)
def test_any_size_goes_there_and_back(size: int, ranks: int, source: str, target: str) -> None:
    mesh, value = mesh_of(tp=ranks), torch.arange(2.0 * size).view(size, 2)

    def act() -> None:
        x = samite.tensor(value, mesh, {"tp": placed(source)})
        there = x.redistribute({"tp": placed(target)})
        torch.testing.assert_close(whole(there), value)
        torch.testing.assert_close(whole(there.redistribute({"tp": placed(source)})), value)
        part = x.to_local()
        if source == "S":
            (rank,) = samite.tensor(list(range(ranks)), mesh, {"tp": Shard(0)}).to_local().tolist()
            each = -(-size // ranks)
            torch.testing.assert_close(part, value[rank * each : (rank + 1) * each])
        torch.testing.assert_close(whole(samite.from_local(part, mesh, {"tp": placed(source)})), value)

    on_ranks(mesh, act)


def test_fsdp_by_hand() -> None:
    """A parameter is gathered for use; its gradient comes back scattered."""
    mesh, w, x = mesh_of(dp=2), torch.randn(4, 3), torch.randn(6, 4)

    def act() -> None:
        weight = samite.tensor(w, mesh, {"dp": Shard(0)}, requires_grad=True)
        batch = samite.tensor(x, mesh, {"dp": Shard(0)})
        (batch @ weight.redistribute({})).relu().sum().backward()
        assert weight.grad.placements == {"dp": Shard(0)}
        expected = w.clone().requires_grad_()
        (x @ expected).relu().sum().backward()
        torch.testing.assert_close(whole(weight.grad), expected.grad)

    on_ranks(mesh, act)


def test_local_parts_share_memory() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        local = torch.ones(2, 3)
        x = samite.from_local(local, mesh, {"dp": Shard(0)})
        assert x.shape == (4, 3)
        assert x.to_local().data_ptr() == local.data_ptr()
        x.add_(1)
        assert local.eq(2).all()

    on_ranks(mesh, act)


def test_a_replica_that_each_rank_uses_in_a_way_of_its_own() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, requires_grad=True)
        mine = samite.tensor([1.0, 2.0], mesh, {"tp": Shard(0)}).to_local()
        (x.to_local(grad_placements={"tp": Partial()}) * mine).sum().backward()
        torch.testing.assert_close(whole(x.grad), torch.full_like(X, 3.0))

    on_ranks(mesh, act)


def test_full_tensor_is_differentiable() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"tp": Shard(1)}, requires_grad=True)
        (x.full_tensor() * G).sum().backward()
        assert x.grad.placements == {"tp": Shard(1)}
        torch.testing.assert_close(whole(x.grad), G)

    on_ranks(mesh, act)


def test_reading() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        assert np.array_equal(x.numpy(), X.numpy())
        assert np.asarray(x).shape == (5, 7)
        assert x.tolist() == X.tolist()
        assert x.sum().item() == X.sum().item()
        assert float(x[1, 2]) == 9.0
        assert bool((x >= 0).all())
        assert torch.equal(x, X)
        assert torch.allclose(x, X)
        assert f"{x.mean():.2f}" == f"{X.mean():.2f}"
        assert torch.equal(torch.from_dlpack(x), X)
        assert torch.equal(pickle.loads(pickle.dumps(x)), X)
        buffer = io.BytesIO()
        torch.save({"x": x}, buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=True)["x"], X)

    on_ranks(mesh, act)


def test_copies_are_distributed_and_their_own() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)}, requires_grad=True)
        for made in (copy.deepcopy(x), copy.copy(x), x.clone().detach()):
            assert isinstance(made, Tensor)
            assert made.placements == {"dp": Shard(0)}
        made = copy.deepcopy(torch.nn.Parameter(x.detach()))
        assert isinstance(made, torch.nn.Parameter)
        made.data.zero_()
        torch.testing.assert_close(whole(x), X)

    on_ranks(mesh, act)


def test_printing_communicates_nothing() -> None:
    mesh = mesh_of(dp=2, tp=1)

    def act() -> str:
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        return f"{x!r} {x} {[x]}" if x.to_local()[0, 0] == 0 else ""

    printed, nothing = on_ranks(mesh, act)
    assert nothing == ""
    assert printed.startswith("samite.Tensor(shape=(5, 7), dtype=float32, layout=[5:dp, 7], mesh=(cpu dp=2 tp=1))")


def test_new_tensors() -> None:
    mesh = mesh_of(dp=2, tp=2)

    def act() -> None:
        halves = {"dp": Shard(0)}
        assert whole(samite.zeros((3, 4), mesh, halves)).eq(0).all()
        assert whole(samite.ones((3,), mesh, {"tp": Shard(0)}, dtype=torch.int64)).tolist() == [1, 1, 1]
        assert whole(samite.full((2, 2), 7, mesh)).tolist() == [[7, 7], [7, 7]]
        assert samite.empty((3, 4), mesh, halves, requires_grad=True).is_leaf
        with pytest.raises(PlacementError, match="owes nothing"):
            samite.ones((3,), mesh, {"dp": Partial()})

    on_ranks(mesh, act)


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_numbers_are_the_same_on_every_mesh(name: str) -> None:
    def numbers(mesh: Any, placements: dict[str, object]) -> torch.Tensor:
        def act() -> torch.Tensor:
            return whole(getattr(samite, name)((7, 6), mesh, placements))

        torch.manual_seed(5)
        return on_ranks(mesh, act)[0]

    one = numbers(mesh_of(d=1), {})
    assert one.std() > 0.2
    for placements in ({"tp": Shard(0)}, {"tp": Shard(1)}, {}):
        assert numbers(mesh_of(tp=1, dp=1), placements).equal(one)


def test_dtensors_words_are_taken() -> None:
    import torch.distributed.tensor as dtensor

    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": dtensor.Shard(1)})
        assert x.redistribute({"dp": dtensor.Replicate()}).placements == {"dp": Replicate()}

    on_ranks(mesh, act)


class TestBadInput:
    def run(self, act: Any, message: str, kind: type[Exception] = SamiteError, **axes: int) -> None:
        with pytest.raises(kind, match=message) as caught:
            on_ranks(mesh_of(**(axes or {"dp": 2})), act)
        if isinstance(caught.value, SamiteError):
            assert caught.value.help

    def test_a_dim_that_is_not_there(self) -> None:
        mesh = mesh_of(dp=2)
        self.run(lambda: samite.tensor(X, mesh, {"dp": Shard(2)}), "no dim 2 in a tensor of shape", PlacementError)
        self.run(lambda: samite.tensor(X, mesh).redistribute({"dp": Shard(-3)}), "no dim -3", PlacementError)

    def test_an_axis_that_is_not_there(self) -> None:
        self.run(lambda: samite.tensor(X, mesh_of(dp=2), {"tp": Shard(0)}), 'no axis "tp"', PlacementError)

    def test_two_meshes(self) -> None:
        def act() -> None:
            one = samite.tensor(X, mesh_of(dp=2))
            other = samite.tensor(X, samite.mesh("cpu", engine="inprocess", d=1))
            one + other

        self.run(act, "lie on two meshes: cpu d=1 and cpu dp=2")

    def test_parts_of_other_shapes(self) -> None:
        mesh = mesh_of(dp=2)

        def act() -> None:
            rank = samite.tensor([0, 1], mesh, {"dp": Shard(0)}).to_local().item()
            samite.from_local(torch.ones(1 + 2 * rank, 3), mesh, {"dp": Shard(0)})

        self.run(act, r"rank 0 has a part of shape \(1, 3\); of a tensor of shape \(4, 3\).*it is \(2, 3\)", InputError)

    def test_replicas_that_differ(self) -> None:
        mesh = mesh_of(dp=2)

        def act() -> None:
            rank = samite.tensor([0, 1], mesh, {"dp": Shard(0)}).to_local()
            samite.from_local(rank, mesh)

        self.run(act, "replicas of a tensor differ between ranks 0 and 1", InputError)

    def test_plain_tensors_that_differ_are_found_in_debug_mode(self) -> None:
        mesh = mesh_of(dp=2)

        def act() -> None:
            x = samite.tensor(X, mesh, {"dp": Shard(0)})
            x + x.to_local()[0, 0]

        on_ranks(mesh, act)
        with pytest.raises(SamiteError):
            on_ranks(mesh, act, debug=True)

    def test_an_op_of_others_whose_result_has_a_shape_that_depends_on_data(self) -> None:
        mesh = mesh_of(dp=2)
        with torch.library._scoped_library("samite_moving", "DEF") as library:
            library.define("positive(Tensor x) -> Tensor")
            fake = torch.library.register_fake("samite_moving::positive", lib=library)
            fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))
            op: Any = torch.ops.samite_moving.positive
            self.run(lambda: op(samite.tensor(X, mesh, {"dp": Shard(0)})), "depends on data", InputError)

    def test_a_shape_changed_in_place(self) -> None:
        mesh = mesh_of(dp=2)
        self.run(lambda: samite.tensor(X, mesh, {"dp": Shard(0)}).resize_(3), "in place", InputError)

    def test_pointers(self) -> None:
        mesh = mesh_of(dp=2)
        self.run(
            lambda: samite.tensor(X, mesh, {"dp": Shard(0)}).data_ptr(), r"data_ptr\(\) of a tensor that lies on a mesh"
        )
