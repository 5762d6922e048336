"""Handles of buffers: how the value of a `Remote` is found and written by ops outside of compiled functions."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.utils._pytree as pytree

from samite.eager.calls import facts
from samite.eager.spec import Home, spec
from samite.eager.value import enclosing
from samite.runtime.resident import Resident
from samite.runtime.session import Session
from samite.tensor.remote import Remote

__all__ = ["BufferSource", "HostHome"]


class BufferSource:
    """Where this process is a rank: the slot of the buffer is the tensor's memory."""

    def __init__(self, remote: Remote, home: Home) -> None:
        self.remote, self.home = remote, home

    def fresh(self, x: Any) -> Any:
        remote = self.remote
        if not remote.on_workers:
            remote.send(remote.layout)
        workers = cast(Resident, remote.session.start())
        x._local, layout = workers.local(remote.number)
        return enclosing(x._local, spec(self.home, layout, remote.dtype), type(x))

    def written(self, x: Any, firm: Any) -> None:
        self.remote.workers_written(self.remote.layout)


class HostHome:
    """Where the ranks are other processes: calls work on the replica of this host."""

    def __init__(self, session: Session) -> None:
        self.session, self.mesh = session, session.mesh

    def call(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _SAME:
            return kind(args[0].remote, args[0]._on_host)
        written = _written(kind, func, args, kwargs)
        fresh = written if func is torch.ops.aten.copy_.default else []

        def plain(x: Any) -> Any:
            return x.read(overwrite=any(x is w for w in fresh)) if type(x) is kind else x

        result = func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs))
        for handle in written:
            handle.remote.host_written()
        if facts(func).written:
            return written[0] if written and isinstance(result, torch.Tensor) else result
        if facts(func).views and type(args[0]) is kind:
            remote = args[0].remote
            return pytree.tree_map_only(torch.Tensor, lambda view: kind(remote, view), result)
        return result


_SAME = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))


def _written(kind: type[Any], func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The handles that an op writes to, by its schema."""
    known = facts(func)
    found: list[Any] = []
    for position, name in enumerate(known.names):
        if name in known.written:
            value = args[position] if position < len(args) else kwargs.get(name)
            found += [x for x in pytree.tree_leaves(value) if type(x) is kind]
    return found
