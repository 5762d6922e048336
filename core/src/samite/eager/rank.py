"""The home of values where this process is a rank: calls run on this rank's shards."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from samite.eager.caller import Caller, Planned
from samite.eager.calls import Call, leaves_of
from samite.eager.emission import emit, emit_reshard
from samite.eager.placing import Placed
from samite.eager.remote import Remote
from samite.eager.spec import Spec, spec
from samite.eager.tracing import aside
from samite.eager.value import NOTHING, enclosing
from samite.eager.views import View
from samite.hal.driver import Communicator
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules.planning import settle
from samite.runtime.resident import Resident

__all__ = ["Rank", "digest"]

Agree = Callable[[str, "Sequence[tuple[str, int]]"], None]


class Rank(Caller):
    """This process as rank `rank` of a mesh.

    `agree(what, values)` returns when all ranks say the same, and raises if one does not within seconds; whatever
    reads a value whole asks it first. With `debug`, plain tensors are compared between ranks where they meet
    distributed ones.
    """

    def __init__(
        self, mesh: Mesh, rank: int, communicator: Communicator | None, agree: Agree, *, debug: bool = False
    ) -> None:
        self.mesh, self.rank, self.communicator, self.agree, self.debug = mesh, rank, communicator, agree, debug
        self._reshards: dict[tuple[Layout, Layout, torch.dtype], Callable[[torch.Tensor], torch.Tensor]] = {}
        self._settlements: dict[Spec, tuple[Spec, Callable[[torch.Tensor], torch.Tensor]]] = {}
        self._seeded = False

    def handle(self, kind: type[Any], remote: Remote) -> Any:
        """A tensor whose value is that of a buffer of this rank's workers."""
        made = enclosing(NOTHING, spec(self, remote.layout, remote.dtype, loose=True), kind)
        made._remote, made._view = remote, _Slot(remote)
        return made

    def whole(self, x: Any) -> torch.Tensor:
        """All ranks ask for it, unless each has all of it."""
        if isinstance(x._view, _Slot) and x._remote.layout.at:
            return x._remote.host()
        firm = x._view.fresh(x) if x._spec.loose else x
        layout = firm._spec.layout
        if layout.is_replicated:
            return firm._local
        self.agree(f"reads a value laid out as {layout}", ())
        return self.reshard(firm._local, firm._spec, Layout.replicated(layout.shape))

    def replicated(self, kind: type[Any], value: torch.Tensor) -> Any:
        return enclosing(value, spec(self, Layout.replicated(value.shape), value.dtype), kind)

    def reshard(self, local: torch.Tensor, have: Spec, layout: Layout) -> torch.Tensor:
        """The shard of the same value under another layout; the same memory if that is the same."""
        layout = layout.canonical(self.mesh)
        return local if have.layout == layout else self._way(have, layout)(local)

    def _way(self, have: Spec, layout: Layout) -> Callable[[torch.Tensor], torch.Tensor]:
        key = have.layout, layout, have.dtype
        found = self._reshards.get(key)
        if found is None:
            with aside():
                found = self._reshards[key] = emit_reshard(self, have, layout)
        return found

    def settled(self, x: Any) -> Any:
        have: Spec = x._spec
        if have not in self._settlements:
            to = have.having(layout=settle(have.layout))
            self._settlements[have] = to, self._way(have, to.layout)
        to, pay = self._settlements[have]
        local = pay(x._local)
        if _is_shared(x):
            return enclosing(local, to, type(x))
        x._local, x._spec = local, to
        return x

    def check_seed(self) -> None:
        if not self._seeded:
            self.agree("draws random numbers", (("the seed of torch's random numbers", torch.initial_seed()),))
            self._seeded = True

    def renew(self, x: Any, view: View) -> None:
        made: Any = type(x).__torch_dispatch__(view.func, (), (view.base, *view.literals), view.kwargs)
        x._local = (made if type(made) is type(x) else made[view.index])._local

    def firm(self, x: Any) -> Any:
        return enclosing(x._local, x._spec.firmed, type(x))

    def emit(self, call: Call, placed: Placed, specs: list[Spec | None], kind: type[Any]) -> Any:
        def loosen(result: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            result._view = View(call.func, args, kwargs, index)

        made = emit(call, placed, specs, kind, self, loosen)
        if self.debug and any(leaf.layout is None for leaf in call.leaves):
            return Planned(self._checked(kind, made))
        return made

    def _checked(self, kind: type[Any], plan: Any) -> Any:
        """A plan before which the ranks compare the plain tensors among its operands."""

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            plain = [x for _, x in leaves_of(args, kwargs) if type(x) is not kind]
            values = [(f"a plain tensor of shape {tuple(x.shape)}", digest(x)) for x in plain]
            self.agree("takes plain tensors", values)
            return plan(args, kwargs)

        return run


class _Slot:
    """The source of a handle: the slot of its buffer, which compiled steps replace."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def fresh(self, x: Any) -> Any:
        remote = self.remote
        if not remote.on_workers:
            remote.send(remote.layout.unpinned())
        elif remote.unpin():
            remote.settled_as(remote.layout)  # what is written to this rank's part does not reach a copy on the host
        x._local, layout = cast(Resident, remote.session.start()).local(remote.number)
        return enclosing(x._local, spec(x._spec.home, layout, remote.dtype), type(x))

    def written(self, x: Any, firm: Any) -> None:
        self.remote.workers_written(self.remote.layout)

    def stamp(self, x: Any) -> object:
        return self.remote.version


def digest(x: torch.Tensor) -> int:
    """A checksum of a tensor's bytes."""
    data: Any = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(data)


def _is_shared(x: Any) -> bool:
    """Whether anything but `x` looks at its memory. Asking holds it twice: as an argument, and as a storage."""
    held: Any = cast(Any, torch._C)._storage_Use_Count(x._local.untyped_storage()._cdata)
    return sys.getrefcount(x._local) > 2 or held > 2
