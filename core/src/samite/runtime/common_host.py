"""Shared memory among ranks that a launcher started on one host: rank 0 makes a segment, the others find it by name.

Nobody passes a descriptor here, as an engine does that starts its workers. So rank 0 tells where its descriptor is in
/proc, and a name that nobody else gives; a rank that does not find that very file there (it is in a container of its
own, perhaps) says so, and then no rank uses it.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from samite.errors import OutOfMemory
from samite.hal.shared import Segment

__all__ = ["common_segment"]

NOBODY = "none"


def common_segment(store: Any, rank: int, ranks: int, nbytes: int) -> Segment | None:
    """A segment of zeros that all ranks map, or None on every rank. `store` is a namespace of its own; every rank
    calls."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != ranks:
        return None
    segment = _offered(store, nbytes) if rank == 0 else _found(store.get("segment").decode())
    store.set(f"found/{rank}", "yes" if segment is not None else "no")
    answers = [store.get(f"found/{other}").decode() for other in range(ranks)]
    if set(answers) == {"yes"}:
        return segment
    if segment is not None:
        segment.close()
    return None


def _offered(store: Any, nbytes: int) -> Segment | None:
    name = f"samite-{secrets.token_hex(8)}"
    try:
        segment = Segment.create(nbytes, name)
    except OutOfMemory:
        store.set("segment", NOBODY)
        return None
    store.set("segment", f"/proc/{os.getpid()}/fd/{segment.fd} {name}")
    return segment


def _found(told: str) -> Segment | None:
    path, _, name = told.partition(" ")
    try:
        if not name or name not in os.readlink(path):
            return None
        return Segment(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return None
