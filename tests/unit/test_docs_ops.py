"""docs/ops.md says what docs/ops.json does, and there is no wrong result in it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from samite.testing.opinfo.store import Store

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_ops", DOCS / "generate_ops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_records_give(generator: ModuleType) -> None:
    text = (DOCS / "ops.md").read_text(encoding="utf-8")
    assert generator.page(Store.read(DOCS / "ops.json")) == text, "run python docs/generate_ops.py"


def test_the_page_says_what_was_tried(generator: ModuleType) -> None:
    store = Store.read(DOCS / "ops.json")
    head = " ".join(generator.page(store).split("## The entries")[0].split())
    assert f"of torch {store.made_by['torch']})" in head
    assert f"up to {store.made_by['samples']} samples" in head
    assert f"at {store.made_by['placements']} placements" in head


def test_nothing_in_the_records_is_wrong_and_nothing_lacks_that_dtensor_has(generator: ModuleType) -> None:
    records = Store.read(DOCS / "ops.json").records
    assert len(records) > 650
    assert not [r.name for r in records.values() if r.samite.verdict() in ("wrong", "crashed")]
    tried = [r for r in records.values() if r.samite.verdict() != "skipped"]
    assert sum(r.samite.verdict() == "right" for r in tried) >= 0.95 * len(tried)
    assert not [r.name for r in tried if any(generator._better(r, d) for d in generator.DIRECTIONS)]
