"""Python's state that a function reads, wherever it lies: another value is another program. What it changes is told."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import gc
import logging
import os
import random
import sys
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from random import uniform
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import samite
from samite.errors import CaptureError
from samite.frontend.chains import chains

MESH = samite.mesh("cpu", dp=2, engine="lockstep")
X = torch.arange(4.0) + 1
Change = Callable[[], Any]


@dataclasses.dataclass
class Config:
    w: float = 2.0


class Slotted:
    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = 2.0


class Trainer:
    KIND = 1.0

    def __init__(self) -> None:
        self.config, self.table = Config(), {"inner": Config()}

    @property
    def width(self) -> float:
        return self.config.w

    def step(self, x: Tensor) -> Tensor:
        inner = self.table["inner"]
        return x * self.config.w + inner.w * self.KIND


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.w


CONFIG, SLOTTED, TRAINER, MODULE = Config(), Slotted(), Trainer(), Module()
SPACE = types.SimpleNamespace(inner=Config(), count=0, history=[])
TABLE: dict[str, Any] = {"model": {"w": 2.0}}
SEVERAL, NUMBERS = [Config(), Config()], [2.0]
LOSS = nn.SmoothL1Loss(beta=1.0)
COUNT = 0
RANDOM, NUMPY = random.Random(0), np.random.default_rng(0)


def scaled(config: Config, x: Tensor) -> Tensor:
    return x * config.w


def enclosing() -> tuple[Callable[[Tensor], Tensor], dict[str, float]]:
    held = {"w": 2.0}

    def outer(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return y * held["w"]

        return inner(x)

    return outer, held


def in_a_loop(x: Tensor) -> Tensor:
    for config in SEVERAL:
        x = x * config.w
    return x


def default(x: Tensor, config: Config = CONFIG) -> Tensor:
    return x * config.w


def rebind(name: str, value: Callable[[], Any]) -> Change:
    return lambda: globals().update({name: value()})


def grown(owner: Any, key: str = "w") -> Change:
    if isinstance(owner, (dict, list)):
        return lambda: owner.__setitem__(key, owner[key] + 1)  # type: ignore[call-overload]
    return lambda: setattr(owner, key, getattr(owner, key) + 1)


INNER, HELD = enclosing()
os.environ["SAMITE_TEST_WIDTH"] = "2"


def wider() -> None:
    os.environ["SAMITE_TEST_WIDTH"] += "1"


READS: dict[str, tuple[Callable[[Tensor], Tensor], Change]] = {
    "attribute": (lambda x: x * CONFIG.w, grown(CONFIG)),
    "attribute of an attribute": (lambda x: x * SPACE.inner.w, grown(SPACE.inner)),
    "another object": (lambda x: x * CONFIG.w, rebind("CONFIG", lambda: Config(CONFIG.w + 1))),
    "by name": (lambda x: x * getattr(CONFIG, "w"), lambda: grown(CONFIG)()),  # noqa: B009
    "slot": (lambda x: x * SLOTTED.w, grown(SLOTTED)),
    "entry of an entry": (lambda x: x * TABLE["model"]["w"], grown(TABLE["model"])),
    "entry by a variable": (lambda x, key="model": x * TABLE[key]["w"], grown(TABLE["model"])),
    "get": (lambda x: x * TABLE["model"].get("w", 0), grown(TABLE["model"])),
    "an entry that is not there yet": (
        lambda x: x * TABLE.get("more", 1),
        lambda: TABLE.update(more=TABLE.get("more", 1) + 1),
    ),
    "all of a list": (lambda x: x * sum(NUMBERS), lambda: NUMBERS.append(1.0)),
    "argument of a helper": (lambda x: scaled(SPACE.inner, x), grown(SPACE.inner)),
    "the helper": (lambda x: scaled(SPACE.inner, x), rebind("scaled", lambda: lambda c, x, f=scaled: f(c, x) + 1)),
    "objects in a list": (lambda x: x * sum(config.w for config in SEVERAL), grown(SEVERAL[1])),
    "objects in a comprehension": (lambda x: x * [config.w for config in SEVERAL][1], grown(SEVERAL[1])),
    "objects in a loop": (in_a_loop, grown(SEVERAL[0])),
    "method": (TRAINER.step, grown(TRAINER.config)),
    "method, by a local name": (TRAINER.step, grown(TRAINER.table["inner"])),
    "attribute of a class": (TRAINER.step, grown(Trainer, "KIND")),
    "property": (lambda x: x * TRAINER.width, grown(TRAINER.config)),
    "object of a module": (MODULE, grown(MODULE.config)),
    "inner function": (INNER, grown(HELD)),
    "default": (default, grown(default.__defaults__[0])),
    "vars": (lambda x: x * vars(CONFIG)["w"], lambda: grown(CONFIG)()),
    "asdict": (lambda x: x * dataclasses.asdict(CONFIG)["w"], lambda: grown(CONFIG)()),
    "partial": (functools.partial(scaled, SLOTTED), grown(SLOTTED)),  # type: ignore[arg-type]
    "module of torch's": (lambda x: LOSS(x, 2 * x), grown(LOSS, "beta")),
    "environment": (lambda x: x * float(os.environ["SAMITE_TEST_WIDTH"]), wider),
    "environment, by get": (lambda x: x * float(os.environ.get("SAMITE_TEST_WIDTH", "1")), wider),
    "environment, by getenv": (lambda x: x * float(os.getenv("SAMITE_TEST_WIDTH", "1")), wider),
}


@pytest.mark.parametrize("case", list(READS))
def test_another_value_is_another_program(case: str) -> None:
    function, change = READS[case]
    compiled = samite.compile(function, mesh=MESH)
    compiled(X)
    for _ in range(2):
        change()
        assert torch.equal(compiled(X).clone(), function(X))
        made = len(compiled.compilations)
        compiled(X)
        assert len(compiled.compilations) == made
    assert made == 3


def test_a_value_that_comes_back_has_its_program() -> None:
    config = Config()
    compiled = samite.compile(lambda x: x * config.w, mesh=MESH)
    for w in (2.0, 3.0, 2.0, 3.0, 2.0 + 0.0):
        config.w = w
        assert torch.equal(compiled(X).clone(), X * w)
    assert len(compiled.compilations) == 2


def test_what_is_not_read_does_not_count() -> None:
    space = types.SimpleNamespace(w=2.0, steps=0, seen=[])
    table = {"w": 1.0, "steps": 0}

    def function(x: Tensor) -> Tensor:
        made = types.SimpleNamespace(w=space.w, parts=[])
        made.parts.append(x * made.w)
        made.total = made.parts[0] * table["w"]
        return made.total

    compiled = samite.compile(function, mesh=MESH)
    for n in range(3):
        assert torch.equal(compiled(X).clone(), X * 2)
        space.steps, table["steps"] = n, n
        space.seen.append(n)
    assert len(compiled.compilations) == 1


def test_a_trainer_may_count_its_steps() -> None:
    class Counting(Trainer):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.losses = 0, list[float]()

        def step(self, x: Tensor) -> Tensor:
            return super().step(x) * (lambda: self.config.w)()

    trainer = Counting()
    compiled = samite.compile(trainer.step, mesh=MESH)
    for n in range(4):
        trainer.config.w = 2.0 + n // 2
        assert torch.equal(compiled(X).clone(), trainer.step(X))
        trainer.steps += 1
        trainer.losses.append(1.0)
    assert len(compiled.compilations) == 2


def test_what_was_read_is_not_kept_alive() -> None:
    config = Config()
    compiled = samite.compile(lambda x: x * SPACE.held.w, mesh=MESH)
    SPACE.held, gone = config, weakref.ref(config)
    compiled(X)
    SPACE.held = Config(3.0)
    del config
    assert torch.equal(compiled(X).clone(), X * 3)
    gc.collect()
    assert gone() is None


def _count(x: Tensor) -> Tensor:
    global COUNT
    COUNT += 1  # here
    return x


def _append(x: Tensor) -> Tensor:
    NUMBERS.append(1.0)  # here
    return x


def _attribute(x: Tensor) -> Tensor:
    SPACE.count += 1  # here
    return x


def _history(x: Tensor) -> Tensor:
    SPACE.history.append(x)  # here
    return x


def _new(x: Tensor) -> Tensor:
    SPACE.fresh = 1  # here
    return x


def _entry(x: Tensor) -> Tensor:
    TABLE["steps"] = 1  # here
    return x


def _random(x: Tensor) -> Tensor:
    return x * random.random()  # here


def _from_random(x: Tensor) -> Tensor:
    return x * uniform(0, 1)  # here


def _own_random(x: Tensor) -> Tensor:
    return x * RANDOM.random()  # here


def _numpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand())  # here


def _own_numpy(x: Tensor) -> Tensor:
    return x * float(NUMPY.random())  # here


CHANGES = {
    _count: "COUNT",
    _append: "NUMBERS",
    _attribute: "SPACE.count",
    _history: "SPACE.history",
    _new: "SPACE.fresh",
}
CHANGES |= {_entry: "TABLE['steps']"}
DRAWS = {_random: "random.random()", _from_random: "uniform()", _own_random: "RANDOM", _own_numpy: "NUMPY"}
DRAWS |= {_numpy: "np.random.rand()"}


def here(function: Callable[..., Any]) -> str:
    lines = Path(__file__).read_text().splitlines()[function.__code__.co_firstlineno - 1 :]
    return f":{function.__code__.co_firstlineno + next(n for n, line in enumerate(lines) if '# here' in line)}"


@pytest.mark.parametrize("function", CHANGES, ids=lambda f: f.__name__)
def test_what_a_function_changes_is_told_and_put_back(function: Callable[[Tensor], Tensor]) -> None:
    before = COUNT, list(NUMBERS), dict(vars(SPACE)), list(SPACE.history), dict(TABLE)
    with pytest.raises(CaptureError, match="is changed inside the step") as caught:
        samite.compile(function, mesh=MESH)(X)
    assert f'"{CHANGES[function]}"' in caught.value.what
    assert caught.value.where.endswith(here(function))
    assert (COUNT, list(NUMBERS), dict(vars(SPACE)), list(SPACE.history), dict(TABLE)) == before


@pytest.mark.parametrize("function", DRAWS, ids=lambda f: f.__name__)
def test_random_numbers_of_pythons_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    states = random.getstate(), RANDOM.getstate(), repr(np.random.get_state()), repr(NUMPY.bit_generator.state)
    with pytest.raises(CaptureError, match="is drawn when the step is captured, and never again") as caught:
        samite.compile(function, mesh=MESH)(X)
    assert caught.value.what.startswith(DRAWS[function])
    assert caught.value.where.endswith(here(function))
    after = random.getstate(), RANDOM.getstate(), repr(np.random.get_state()), repr(NUMPY.bit_generator.state)
    assert states == after


@pytest.mark.parametrize("read", [time.time, time.perf_counter, datetime.datetime.now], ids=lambda f: f.__name__)
def test_clocks_are_told(read: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Tensor:
        began = read()
        return x * (read() >= began)

    with caplog.at_level(logging.WARNING, "samite"):
        samite.compile(function, mesh=MESH)(X)
    assert "is read when the step is captured, and not again" in caplog.text
    assert f"{read.__name__}()" in caplog.text


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * CONFIG.w


def test_what_backward_reads() -> None:
    """torch runs the backward pass; the user's part of it is followed all the same."""

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        Doubled.apply(x).sum().backward()
        assert x.grad is not None
        return x.grad

    compiled = samite.compile(gradient, mesh=MESH)
    for w in (2.0, 5.0):
        CONFIG.w = w
        assert torch.equal(compiled(X).clone(), torch.full((4,), w))


def test_what_has_no_file() -> None:
    """Functions that are typed in, or made by exec."""
    names: dict[str, Any] = {"w": 2.0, "config": Config()}
    exec("def inner(x): return x * config.w\ndef function(x): return inner(x) * w", names)
    compiled = samite.compile(names["function"], mesh=MESH)
    for w, inner in ((2.0, 2.0), (3.0, 2.0), (3.0, 4.0)):
        names["w"], names["config"].w = w, inner
        assert torch.equal(compiled(X).clone(), X * inner * w)


def test_a_debugger_goes_on() -> None:
    lines: list[int] = []

    def tracer(frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is function.__code__:
            lines.append(frame.f_lineno)
        return tracer

    def function(x: Tensor) -> Tensor:
        y = x * CONFIG.w
        return y + 1

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        samite.compile(function, mesh=MESH)(X)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    first = function.__code__.co_firstlineno
    assert [line - first for line in lines] == [0, 1, 2, 2]


def test_chains() -> None:
    def code(x: Any, config: Any, key: str) -> Any:
        y = TABLE["a"][key].w * config.m.n
        config.total += 1
        TABLE["b"] = y
        del config.old
        return getattr(config, "hidden", None)

    found = [
        (
            chain.root.name,
            [link.key if isinstance(link.key, str) else link.key.name for link in chain.links],
            chain.stores,
        )
        for _, line in sorted(chains(code.__code__).items())
        for chain in line
        if chain.links
    ]
    assert found == [
        ("TABLE", ["a", "key", "w"], False),
        ("config", ["m", "n"], False),
        ("config", ["total"], False),
        ("TABLE", ["b"], True),
        ("config", ["old"], True),
        ("config", ["hidden"], False),
    ]


def test_the_collector_runs_nothing_within_the_function() -> None:
    """Its callbacks, and what they read, would be taken for the function's."""

    def step(x: Tensor) -> Tensor:
        assert not gc.isenabled()
        return x * 2

    assert gc.isenabled()
    assert torch.equal(torch.as_tensor(samite.compile(step, mesh=MESH, placements={})(X)), X * 2)
    assert gc.isenabled()
