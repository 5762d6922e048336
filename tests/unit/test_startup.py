"""`import samite` is light: whatever is heavy is imported at its first use."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "jax",
    "pydantic",
    "pydantic_settings",
    "ray",
    "rich",
    "samite_cpu",
    "scipy",
    "stevedore",
    "torch._dynamo",
    "torch._inductor",
    "torch_mlir",
    "triton",
    "typer",
}


def imported_by(statement: str) -> set[str]:
    """Names of the modules that `statement` imports in a new interpreter, beyond those that `import torch` does."""
    script = f"import sys, torch; before = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_leaves_heavy_modules_alone() -> None:
    assert not imported_by("import samite") & HEAVY


def test_what_is_imported_is_seen() -> None:
    assert {"rich", "samite"} <= imported_by("import samite, rich")
