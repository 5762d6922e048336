"""docs/ir.md says what the code says: its tables are generated, and its pass runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from programs import traced
from samite.ir.importer import import_graph

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "ir.md").read_text()
PINNED = re.findall(r"^torch==([\d.]+)", (DOCS.parent / "constraints.txt").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_ir", DOCS / "generate_ir.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Another version of torch may trace a function to other ops.
with_pinned_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] not in PINNED, reason="the page shows what the pinned torch gives"
)


@with_pinned_torch
@pytest.mark.parametrize("name", ["correspondence", "dialect", "regions", "passes", "example"])
def test_sections_are_what_the_code_gives(generator: ModuleType, name: str) -> None:
    match = re.search(rf"<!-- generated: {name} -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert match, f"docs/ir.md has no section {name}"
    assert match[1] == "\n".join(generator.SECTIONS[name]()).rstrip(), "run python docs/generate_ir.py"


@with_pinned_torch
def test_every_section_is_generated(generator: ModuleType) -> None:
    assert re.findall(r"<!-- generated: (\w+) -->", PAGE) == list(generator.SECTIONS)
    assert generator.regenerated(PAGE) == PAGE


def test_the_pass_on_the_page_works() -> None:
    [code] = re.findall(r"```python\n(from samite\.ir\.build import rewrite.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    module = import_graph(traced(lambda x: (x.neg().neg(), x.neg().exp()), torch.ones(2)).graph)
    made = namespace["CancelNegations"]().run(module)
    made.verify()
    assert [node.op.name for node in made.graph.nodes] == ["aten.neg", "aten.neg", "aten.exp"]
    assert made.graph.returns == (0, 3)
