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


def test_nothing_in_the_records_is_wrong() -> None:
    records = Store.read(DOCS / "ops.json").records
    assert len(records) > 600
    assert not [r.name for r in records.values() if r.samite.verdict() == "wrong"]
    tried = [r for r in records.values() if r.samite.verdict() != "skipped"]
    assert sum(r.samite.verdict() == "right" for r in tried) >= 0.9 * len(tried)
