"""The state tree: names, keys, leaves, and its recognition of repeated calls."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captures import train_step
from models import CNN, GPT, MLP, batch
from samite.errors import CaptureError, InputError
from samite.frontend import Leaf, StateTree, Trees, capture

X, Y = torch.randn(4, 16), torch.zeros(4, dtype=torch.int64)
SCALE, WORDS = 1.0, ["a"]


class Scaled(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.factor, self.options, self.table = 2.0, {"bias": True}, torch.ones(8)
        self.register_buffer("mean", torch.zeros(8))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, flag: bool = True) -> Tensor:
    return train_step(model, optimizer, x * SCALE, y)


def setting(trained: bool = True) -> tuple[Any, ...]:
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if trained:
        train_step(model, optimizer, X, Y)
    return model, optimizer, X, Y


def names(tree: StateTree) -> list[str]:
    return [leaf.name for leaf in tree.leaves]


def test_names_and_order() -> None:
    model = MLP(layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    model(X, Y).backward()
    model.head.bias.grad = None
    optimizer.step()
    model.head.zero_grad()
    tree = StateTree.from_call(step, (model, optimizer, X, Y))
    parameters = ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]
    assert names(tree) == [
        *(f"model.{p}" for p in parameters),
        "model.layers.0.weight.grad",
        "model.layers.0.bias.grad",
        *(f"optimizer.{p}.{key}" for p in parameters[:3] for key in ("step", "exp_avg", "exp_avg_sq")),
        "optimizer.param_groups.0.lr",
        "optimizer.param_groups.0.numbers",
        "x",
        "y",
    ]
    owners = {leaf.name: leaf.owner for leaf in tree.leaves}
    assert owners["optimizer.head.weight.exp_avg"] == "model.head.weight"
    assert owners["model.layers.0.bias.grad"] == "model.layers.0.bias"
    assert {leaf.kind for leaf in tree.leaves} == {"state", "scalar", "input"}
    rate = tree.leaf("optimizer.param_groups.0.lr").get()
    assert rate is not None
    assert rate.item() == 0.25
    assert rate.dtype == torch.float32
    numbers = tree.leaf("optimizer.param_groups.0.numbers").get()
    assert numbers is not None
    assert numbers.tolist() == [0.25, 0.9, 0.999, 1e-8, 0.0]


def test_an_optimizer_of_two_models_names_them() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1, momentum=0.9)
    (a(torch.ones(1, 2)) + b(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    tree = StateTree.from_call(lambda a, b, opt: None, (a, b, optimizer))
    assert {"opt.a.weight.momentum_buffer", "opt.b.weight.momentum_buffer"} <= set(names(tree))


def test_parameters_that_only_the_optimizer_has() -> None:
    weight = nn.Parameter(torch.ones(2))
    tree = StateTree.from_call(lambda optimizer: None, (torch.optim.SGD([weight], lr=0.1),))
    assert names(tree) == [f"optimizer.param_groups.0.{name}" for name in ("params.0", "lr", "numbers")]
    tree.leaves[0].set(torch.zeros(2))
    assert torch.equal(weight, torch.zeros(2))


def test_tied_weights_are_one_leaf() -> None:
    model = GPT(layers=1, tie=True)
    tree = StateTree.from_call(model, batch(32, 1, 16)[:1])
    assert "tokens.weight" in names(tree)
    assert "head.weight" not in names(tree)
    untied = GPT(layers=1, tie=False)
    assert StateTree.from_call(untied, batch(32, 1, 16)[:1]).key() != tree.key()
    tree.leaf("tokens.weight").set(torch.zeros(32, 32))
    assert model.head.weight is model.tokens.weight
    assert not model.head.weight.any()


def test_two_tensors_of_one_name() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with pytest.raises(CaptureError, match=r'two tensors are called "held\.weight\.grad"'):
        StateTree.from_call(lambda held: None, ({"weight": weight, "weight.grad": X},))


def test_setting_a_leaf_keeps_identities() -> None:
    model, optimizer, *_ = setting()
    tree = StateTree.from_call(step, (model, optimizer, X, Y))
    weight, mean, table = model.head.weight, model.mean, model.table
    for name in ("model.head.weight", "model.mean", "model.table"):
        leaf = tree.leaf(name)
        value = leaf.get()
        assert value is not None
        leaf.set(torch.full_like(value, 7.0))
    assert model.head.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    assert weight in optimizer.state
    assert model.mean is mean
    assert model.table is table
    assert all((t == 7).all() for t in (weight, mean, table))


def test_setting_an_argument_copies_into_it() -> None:
    base = torch.zeros(4)
    tree = StateTree.from_call(lambda x: None, (base[1:3],))
    tree.leaf("x").set(torch.ones(2))
    assert base.tolist() == [0, 1, 1, 0]


def test_absent_leaves_can_be_created_and_deleted() -> None:
    model, optimizer, *_ = setting(trained=False)
    tree = StateTree.from_call(step, (model, optimizer, X, Y))
    gradient, buffer = tree.leaf("model.head.bias.grad"), tree.leaf("optimizer.head.bias.momentum_buffer")
    assert (gradient.role, gradient.owner, gradient.get()) == ("gradient", "model.head.bias", None)
    assert (buffer.role, buffer.owner, buffer.get()) == ("optimizer", "model.head.bias", None)
    assert not optimizer.state, "to look must not create"
    for leaf in (gradient, buffer):
        leaf.set(torch.ones(8))
    assert model.head.bias.grad.sum() == 8
    assert optimizer.state[model.head.bias]["momentum_buffer"].sum() == 8
    for leaf in (gradient, buffer):
        leaf.delete()
        assert leaf.get() is None
    for name in ("model.missing", "model.head.bias.missing.grad", "optimizer.nobody.step"):
        with pytest.raises(KeyError):
            tree.leaf(name)


def test_what_cannot_be_absent_or_set() -> None:
    tree = StateTree.from_call(step, setting())
    for name in ("model.head.weight", "x", "optimizer.param_groups.0.lr", "optimizer.param_groups.0.numbers"):
        with pytest.raises(TypeError):
            tree.leaf(name).delete()
    for name in ("lr", "numbers"):
        with pytest.raises(TypeError, match="set by the user"):
            tree.leaf(f"optimizer.param_groups.0.{name}").set(torch.ones(()))


def test_a_parameter_that_cannot_be_replaced() -> None:
    model = nn.Linear(2, 2)
    held = weakref.ref(model.weight)
    leaf = StateTree.from_call(model, (torch.ones(1, 2),)).leaf("weight")
    with pytest.raises(InputError, match=r"cannot be replaced[\s\S]*weak references"):
        leaf.set(torch.zeros(2, 2))
    del held
    leaf.set(torch.zeros(2, 2))
    assert not model.weight.any()


def key(args: tuple[Any, ...], **kwargs: Any) -> Any:
    return StateTree.from_call(step, args, kwargs).key()


def test_keys_of_equal_structures_are_equal() -> None:
    assert key(setting()) == key(setting())
    assert hash(key(setting())) == hash(key(setting()))
    first, second = setting(), setting()
    second[1].param_groups[0]["lr"] = 0.5
    assert key(first) == key((*second[:2], X + 1, Y + 1))


def _freeze_first(model: Any, optimizer: Any) -> None:
    model.layers[0].weight.requires_grad_(False)


def _untie(model: Any, optimizer: Any) -> None:
    model.layers[1].bias = model.layers[0].bias


def _reload(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


CHANGES: list[tuple[str, bool, Callable[[Any, Any], Any]]] = [
    ("nothing", False, lambda m, o: None),
    ("rate", False, lambda m, o: o.param_groups[0].update(lr=0.5)),
    ("scheduler", False, lambda m, o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=9)),
    ("values", False, lambda m, o: m.head.weight.data.mul_(2)),
    ("reload", False, _reload),
    ("reload model", False, lambda m, o: m.load_state_dict(m.state_dict())),
    ("equal attribute", False, lambda m, o: setattr(m, "factor", float("2.0"))),
    ("tensor rate", True, lambda m, o: o.param_groups[0].update(lr=torch.tensor(0.1, dtype=torch.float64))),
    ("momentum", False, lambda m, o: o.param_groups[0].update(momentum=0.5)),
    ("no momentum", True, lambda m, o: o.param_groups[0].update(momentum=0)),
    ("weight decay", True, lambda m, o: o.param_groups[0].update(weight_decay=0.1)),
    ("tensor momentum", False, lambda m, o: o.param_groups[0].update(momentum=torch.tensor(0.5))),
    ("no number", True, lambda m, o: o.param_groups[0].update(momentum=None)),
    ("nesterov", True, lambda m, o: o.param_groups[0].update(nesterov=True)),
    ("own key", True, lambda m, o: o.param_groups[0].update(decay=0.5)),
    ("other group", False, lambda m, o: o.param_groups.__setitem__(0, dict(o.param_groups[0], lr=1.0))),
    ("default", True, lambda m, o: o.defaults.update(momentum=0.5)),
    ("attribute of the optimizer", True, lambda m, o: setattr(o, "power", 0.5)),
    ("hook of the optimizer", True, lambda m, o: o.register_step_pre_hook(lambda *a: None)),
    ("hook of its state", False, lambda m, o: o.register_state_dict_pre_hook(lambda *a: None)),
    ("group", True, lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.ones(3))]})),
    ("state", True, lambda m, o: o.state[m.head.bias].clear()),
    ("more state", True, lambda m, o: o.state[m.head.bias].update(average=torch.ones(8))),
    ("python state", True, lambda m, o: o.state[m.head.bias].update(calls=1)),
    ("gradient", True, lambda m, o: setattr(m.head.bias, "grad", torch.ones(8))),
    ("frozen", True, _freeze_first),
    ("mode", True, lambda m, o: m.eval()),
    ("mode of a part", True, lambda m, o: m.layers[0].eval()),
    ("attribute", True, lambda m, o: setattr(m, "factor", 3.0)),
    ("kind of attribute", True, lambda m, o: setattr(m, "factor", 2)),
    ("new attribute", True, lambda m, o: setattr(m, "fresh", 3.0)),
    ("container", True, lambda m, o: m.options.update(bias=False)),
    ("buffer", True, lambda m, o: m.register_buffer("mean", torch.zeros(9))),
    ("new buffer", True, lambda m, o: m.register_buffer("other", torch.zeros(9))),
    ("plain tensor", True, lambda m, o: setattr(m, "table", torch.ones(8, dtype=torch.float64))),
    ("dtype in place", True, lambda m, o: m.double()),
    ("tied", True, _untie),
    ("hook", True, lambda m, o: m.head.register_forward_hook(lambda *a: None)),
    ("layer", True, lambda m, o: m.layers.append(nn.Linear(3, 3))),
    ("other layer", True, lambda m, o: setattr(m, "head", nn.Linear(32, 8, bias=False))),
]


@pytest.mark.parametrize("changes, change", [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_what_a_key_depends_on_and_that_repeats_see_it(changes: bool, change: Callable[[Any, Any], Any]) -> None:
    args = setting()
    trees = Trees(step)
    _, before = trees.of(args, {})
    _, again = trees.of((*args[:2], X + 1, Y), {})
    assert again is before, "the call was not recognised"
    kept = change(*args[:2])
    tree, after = trees.of(args, {})
    assert after == key(args)
    assert (after != before) == changes
    assert names(tree) == names(StateTree.from_call(step, args))
    del kept


def test_arguments_of_repeats() -> None:
    model, optimizer, x, y = setting()
    trees = Trees(step)
    _, first = trees.of((model, optimizer, x, y), {})
    for args, kwargs, same in (
        ((model, optimizer, x + 1, y), {}, True),
        ((model, optimizer, x, y, True), {}, True),
        ((model, optimizer, x), {"y": y}, True),
        ((model, optimizer, x, y, False), {}, False),
        ((model, optimizer, x, y, 1), {}, False),
        ((model, optimizer, x[:2], y[:2]), {}, True),
        ((model, optimizer, x[None], y), {}, False),
        ((model, optimizer, x.double(), y), {}, False),
        ((model, optimizer, x, x), {}, False),
        ((model, optimizer, model.mean, y), {}, False),
        ((model, optimizer, x.clone().requires_grad_(), y), {}, False),
        ((copy.deepcopy(model), optimizer, x, y), {}, False),
    ):
        tree, got = trees.of(args, kwargs)
        assert (got == first) == same
        assert got == key(args, **kwargs)
        inputs = [leaf.get() for leaf in tree.leaves if leaf.role == "input"]
        assert all(any(t is a for a in (*args, *kwargs.values())) for t in inputs)
        trees.of((model, optimizer, x, y), {})
    with pytest.raises(InputError):
        trees.of((model,), {})


def test_aliased_inputs_of_repeats() -> None:
    a, b, c = X, X + 1, X + 2
    trees = Trees(lambda x, y, z: None)
    keys = [trees.of(args, {})[1] for args in ((a, b, a), (b, c, b), (a, b, b), (a, a, a), (a, b, c), (c, a, b))]
    assert keys[0] is keys[1]
    assert keys[4] is keys[5]
    assert len(set(keys)) == 4


def test_modes_and_variables_of_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    args = setting()
    trees = Trees(step)
    _, first = trees.of(args, {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trees.of(args, {})[1] != first
    with torch.no_grad():
        assert trees.of(args, {})[1] != first
    tree, again = trees.of(args, {})
    assert again == first
    captured = capture(step, args)
    first = trees.key_after(tree, captured.read, captured.places)
    assert trees.of(args, {})[1] is first
    monkeypatch.setitem(step.__globals__, "SCALE", 3.0)
    assert trees.of(args, {})[1] != first


def test_objects_of_the_users_classes() -> None:
    class Config:
        def __init__(self) -> None:
            self.scale, self.sizes, self.module = 1.0, [1, 2], nn.Linear(2, 2)

    def function(config: Config, x: Tensor) -> Tensor:
        return config.module(x[:, :2]) * config.scale * sum(config.sizes)

    config = Config()
    trees = Trees(function)
    tree, _ = trees.of((config, X), {})
    captured = capture(function, (config, X))
    first = trees.key_after(tree, captured.read, captured.places)
    assert trees.of((config, X + 1), {})[1] is first
    config.unread = [1]
    assert trees.of((config, X), {})[1] == first
    config.sizes.append(3)
    _, second = trees.of((config, X), {})
    config.scale = 2.0
    _, third = trees.of((config, X), {})
    assert len({first, second, third}) == 3
    config.module = nn.Linear(2, 2, bias=False)
    assert trees.of((config, X), {})[1] not in {first, second, third}


def test_keys_do_not_keep_the_users_objects_alive() -> None:
    model = CNN()
    model.extra = [nn.Linear(2, 2)]
    alive = weakref.ref(model), weakref.ref(model.extra[0])
    kept = StateTree.from_call(model, (torch.ones(1, 3, 8, 8),)).key()
    del model
    gc.collect()
    assert [r() for r in alive] == [None, None]
    assert kept == kept
    assert isinstance(hash(kept), int)


def test_leaves_are_public() -> None:
    tree = StateTree.from_call(step, setting())
    assert all(isinstance(leaf, Leaf) for leaf in tree.leaves)
