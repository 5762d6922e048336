"""Custom ops in the workers: the module that defines them is named in the mesh's options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import samite
from samite import Shard
from samite.rules import rule, rules
from samite.runtime.session import session_of

pytestmark = pytest.mark.multiprocess

DEFINITION = """
import torch
library = torch.library.Library("workshop", "DEF")
library.define("thrice(Tensor x) -> Tensor")
library.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")
"""


def test_workers_import_what_the_options_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workshop_ops.py").write_text(DEFINITION)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("workshop_ops")
    rule("workshop::thrice", "*a -> *a", linear="all")
    try:
        mesh = samite.mesh("cpu", engine="local", dp=2, options={"worker_imports": ["workshop_ops"]})
        placements = {"x": {"dp": Shard(0)}}
        run = samite.compile(lambda x: torch.ops.workshop.thrice(x).sum(), mesh=mesh, placements=placements)
        assert run(torch.ones(5)).item() == 15
        session_of(mesh).close()
    finally:
        del rules()["workshop.thrice"]  # type: ignore[attr-defined]
        del sys.modules["workshop_ops"]
