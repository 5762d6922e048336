"""Workers that load what an earlier start compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_local import sgd_program

from samite.mesh import Mesh
from samite.runtime import crew
from samite.runtime.crew import Crew
from samite.runtime.local import Local


def test_a_second_start_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(crew, "WORTH_KEEPING", -1.0)
    sent: list[str] = []
    send = Crew.send

    def recorded(self: Crew, rank: int, message: tuple[Any, ...], fds: Any = ()) -> None:
        sent.append(message[0])
        send(self, rank, message, fds)

    monkeypatch.setattr(Crew, "send", recorded)
    mesh = Mesh(("dp", "tp"), (2, 2))
    for start in range(3):
        if start == 2:  # nobody's program: whole, and useless
            [path] = tmp_path.iterdir()
            crew.Artifacts(tmp_path).put(path.name, b"no pickle")
        workers, sent[:] = Local().start(mesh, {}), []
        try:
            workers.load(sgd_program(mesh), {"mode": "aten"})
            assert ("compile" in sent) == (start != 1)
            assert sent.count("load") == (8 if start == 2 else 4)
        finally:
            workers.close()
