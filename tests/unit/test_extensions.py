"""Rules and passes that plugins add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import samite
from samite import Shard, plugins
from samite.errors import PassMissing
from samite.hal import hookimpl
from samite.ir.module import Module
from samite.rules import language, rule

SEEN: list[str] = []


class Counting:
    name = "counting"

    def run(self, module: Module) -> Module:
        SEEN.extend(node.op.name for node in module.graph.nodes)
        return module


class Extension:
    after = "place"

    @hookimpl
    def samite_add_passes(self) -> dict[str, list[Any]]:
        return {self.after: [Counting()]}

    @hookimpl
    def samite_add_rules(self) -> list[Any]:
        return [rule("extended::twice", "*a -> *a", linear="all")]


@pytest.fixture
def extension() -> Iterator[Extension]:
    made = Extension()
    plugins.register("extension", made)
    yield made
    plugins.unregister("extension")
    language._rules.pop("extended.twice", None)  # other tests go through all rules


def test_rules_and_passes_of_a_plugin(extension: Extension) -> None:
    with torch.library._scoped_library("extended", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        def step(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.extended.twice(x).sum()

        mesh = samite.mesh("cpu", engine="lockstep", dp=2)
        run = samite.compile(step, mesh=mesh, placements={"x": {"dp": Shard(0)}})
        assert run(torch.ones(3)).item() == 6
        assert "extended.twice" in SEEN
        assert "dist.reshard" in SEEN  # it saw the module after `place`

        extension.after = "palce"
        with pytest.raises(PassMissing, match='after "palce"') as caught:
            samite.compile(step, mesh=mesh)(torch.ones(4))
        assert '"place"' in str(caught.value)
