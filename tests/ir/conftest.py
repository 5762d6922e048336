"""Collects `*.mlir`: a file is the test of one pass, its sections, split by `// -----`, are the test's cases.

    // RUN: bucket_collectives(bucket_bytes=64)
    //
    // Every section's module is put through the passes of the last RUN line before it. A section begins with a line
    // that says what it shows; CHECK lines say what must come out, or an ERROR line what is refused.

    // -----

    // Nothing is reduced: nothing changes.
    module { func.func @main(...) ... }
    // CHECK: func.func @main

    // -----

    // Collectives are over axes of the mesh.
    // ERROR: axis ['pp'] is not in the mesh

A RUN line is Python: a pass by its name, or several with commas between; `Shard`, `Replicate` and `Partial` are there,
`topology`, which makes one of dicts, and `roundtrip()`, which checks that text and bytecode give the module back.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from samite import Partial, Replicate, Shard
from samite.errors import SamiteError
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.passes.base import Pass
from samite.passes.cut_stages import CutStages
from samite.passes.pipeline import default_passes
from samite.passes.split_microbatches import SplitMicrobatches
from samite.passes.stages.joint import joint_module
from samite.topology import Topology


class Roundtrip:
    """The module as its own text and bytecode say it, to the letter."""

    name = "roundtrip"

    def run(self, module: Module) -> Module:
        text = module.text()
        for again in (Module.parse(text), Module.parse(module.bytecode())):
            assert again.text() == text
            module = again
        return module


class Cut:
    """`cut_stages`, and what it gives as one module. Arguments that are state are those with an alias; `inputs` are
    indices."""

    name = "cut_stages"

    def __init__(self, stages: int, inputs: tuple[int, ...] = (), marks: tuple[int, ...] = ()) -> None:
        self.stages, self.inputs, self.marks = stages, frozenset(inputs), marks

    def run(self, module: Module) -> Module:
        mesh, state = Mesh(("pp",), (self.stages,)), frozenset(a for a in module.graph.aliases if a >= 0)
        cut = CutStages(mesh, "pp", self.stages, Topology(), self.inputs, state, {}, {}, self.marks).run(module)
        return joint_module(cut.functions, cut.joins, mesh)


_PASSES = (
    *default_passes({}, {}, 1, overlap=True, topology=Topology()),
    SplitMicrobatches(frozenset()),
    Roundtrip(),
)
WORDS: dict[str, Any] = {p.name: type(p) for p in _PASSES} | {"cut_stages": Cut}
WORDS |= {"Shard": Shard, "Replicate": Replicate, "Partial": Partial, "topology": Topology.from_dict}


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return MlirFile.from_parent(parent, path=file_path) if file_path.suffix == ".mlir" else None


class MlirFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        run, line = "", 0
        for section in re.split(r"^// -----$", self.path.read_text(), flags=re.MULTILINE):
            if found := re.search(r"^// RUN: (.*)$", section, re.MULTILINE):
                run = found[1]
            if "func.func" in section:
                title = re.search(r"^// (?!RUN:)(.+)$", section, re.MULTILINE)
                if title is None:
                    raise self.CollectError(f"{self.path}:{line + 1}: a section says first what it shows")
                # Padded, so that lines are counted from the top of the file.
                yield MlirCase.from_parent(self, name=title[1].rstrip(".:"), run=run, section="\n" * line + section)
            line += section.count("\n")


class MlirCase(pytest.Item):
    def __init__(self, *, run: str, section: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run, self.section = run, section

    def runtest(self) -> None:
        error = re.search(r"^// ERROR: (.*)$", self.section, re.MULTILINE)
        if error is None:
            self._check(self._passed().text(locations=False))
            return
        with pytest.raises(SamiteError) as raised:
            self._passed()
        assert error[1] in str(raised.value)

    def _passed(self) -> Module:
        passes: list[Pass] = eval(f"[{self.run}]", WORDS.copy())
        module = Module.parse(self.section)
        for step in passes:
            module = step.run(module)
            module.verify(after=step.name)
        return module

    def _check(self, text: str) -> None:
        options = Options(match_filename=str(self.path), check_prefixes=["CHECK"])
        checks = Parser(options, io.StringIO(self.section), *pattern_for_opts(options))
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            failed = Matcher(options, FInput("<module>", text), checks).run()
        assert not failed, f"{told.getvalue()}\nthe module is\n{text}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value) if isinstance(excinfo.value, AssertionError) else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}: {self.name}"
