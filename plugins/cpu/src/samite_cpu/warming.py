"""Loading Inductor beside other work: it takes a second or two, which a process that will need it has while the next
program is captured."""

from __future__ import annotations

import importlib
import threading
from functools import cache

__all__ = ["warm_up"]


@cache
def warm_up() -> threading.Thread:
    """Starts once in a process. Who needs Inductor before it is there waits for the rest, as imports do."""
    thread = threading.Thread(target=_load, name="samite-inductor", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._inductor.standalone_compile")
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.pick_vec_isa()  # tries what the processor can, and remembers
