"""The home of values where this process is a rank: calls are planned once, then run on this rank's shards."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from samite.eager import foreach, reads
from samite.eager.calls import Call, Place, facts, leaves_of
from samite.eager.emission import Plan, emit, emit_reshard, result_specs
from samite.eager.keys import exact_key, note
from samite.eager.placing import Placed, place_call, settled_first
from samite.eager.random import draw_seed, drawn
from samite.eager.spec import Spec
from samite.eager.tracing import aside
from samite.eager.value import PLANS, enclosing
from samite.eager.views import View
from samite.hal.driver import Communicator
from samite.ir.context import TensorType
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules.planning import settle
from samite.runtime.sharding import dtype_name

__all__ = ["Rank"]

Agree = Callable[[str, "Sequence[tuple[str, int]]"], None]
_placed: dict[tuple[Any, ...], Placed] = {}
"""Calls by what is the same on all ranks."""


class Rank:
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
        self._seeded = False

    def call(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call that no plan was found for, and plan it for the next time."""
        if reads.is_read(func) or reads.writes_plain(kind, func, args, kwargs):
            return reads.carry_out(self, kind, func, args, kwargs)
        loose = [(place, x) for place, x in leaves_of(args, kwargs) if type(x) is kind and x._spec.loose]
        if loose:
            return self._firmly(kind, func, args, kwargs, loose)
        return self.plan(kind, func, args, kwargs)(args, kwargs)

    def plan(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """What carries out this call, and all calls that differ from it in data alone. No tensor may be loose."""
        parts: list[Any] = [id(func)]
        for value in args:
            note(parts, kind, value)
        for name, value in kwargs.items():
            parts.append(name)
            note(parts, kind, value)
        key = tuple(parts)
        found = PLANS.get(key)
        if found is None:
            found = self._plan(kind, func, args, kwargs, parts)
            if len(PLANS) >= MOST:
                PLANS.pop(next(iter(PLANS)))
            PLANS[key] = found
        return found

    def whole(self, x: Any) -> torch.Tensor:
        """The value of a tensor, on this rank. All ranks ask for it, unless each has all of it."""
        firm = x._view.fresh(x) if x._spec.loose else x
        layout = firm._spec.layout
        if layout.is_replicated:
            return firm._local
        self.agree(f"reads a value laid out as {layout}", ())
        return self.reshard(firm._local, firm._spec, Layout.replicated(layout.shape))

    def reshard(self, local: torch.Tensor, have: Spec, layout: Layout) -> torch.Tensor:
        """The shard of the same value under another layout; the same memory if that is the same."""
        layout = layout.canonical(self.mesh)
        if have.layout == layout:
            return local
        key = have.layout, layout, have.dtype
        found = self._reshards.get(key)
        if found is None:
            with aside():
                found = self._reshards[key] = emit_reshard(self, have, layout)
        return found(local)

    def _plan(
        self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], parts: list[Any]
    ) -> Plan:
        if (random := drawn(func)) is not None:
            return _Redirected(lambda args, kwargs: kind.__torch_dispatch__(random, (), (self._seed(), *args), kwargs))
        if foreach.is_foreach(func):
            return foreach.plan(self, kind, func, args, kwargs)
        if _is_composite(func):
            return _Redirected(lambda args, kwargs: func.decompose(*args, **kwargs))
        floats = exact_key(args, kwargs)
        made = self._emitted(kind, func, args, kwargs, parts, floats)
        if self.debug and any(type(x) is not kind for _, x in leaves_of(args, kwargs)):
            return _Checked(self, kind, made)
        if floats and not made.direct:
            return _Exact(self, kind, func, parts, {floats: made})
        return made

    def _emitted(
        self,
        kind: type[Any],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: list[Any],
        floats: str,
    ) -> Any:
        call = Call.of(func, args, kwargs, lambda x: _describe(kind, x))
        shared = (tuple(self.mesh.items()), floats, *(_unhomed(part) for part in parts))
        with aside():
            placed = _placed.get(shared)
            if placed is None:
                placed = _placed[shared] = place_call(call, self.mesh)
            first = settled_first(placed, call)
            if first:
                return self._settling(kind, func, [call.leaves[i].place for i in first])
            bases = [x._spec if type(x) is kind else None for _, x in leaves_of(args, kwargs)]
            specs = result_specs(call, placed, self, bases)
            return emit(call, placed, specs, kind, self, lambda *made: _loosen(func, *made))

    def _settling(self, kind: type[Any], func: Any, places: list[Place]) -> Plan:
        """Pays what some operands owe, then calls. It stays paid, if nobody else holds their memory."""

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            args, kwargs = _with(args, kwargs, [(place, self._settled(_at(place, args, kwargs))) for place in places])
            return kind.__torch_dispatch__(func, (), args, kwargs)

        return _Redirected(run)

    def _settled(self, x: Any) -> Any:
        have: Spec = x._spec
        to = have.having(layout=settle(have.layout))
        local = self.reshard(x._local, have, to.layout)
        if not _is_shared(x):
            x._local, x._spec = local, to
            return x
        return enclosing(local, to, type(x))

    def _firmly(
        self,
        kind: type[Any],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loose: list[tuple[Place, Any]],
    ) -> Any:
        """The call on the current values of loose tensors; what it writes goes where they come from."""
        firm = [(place, x._view.fresh(x)) for place, x in loose]
        result = kind.__torch_dispatch__(func, (), *_with(args, kwargs, firm))
        known = facts(func)
        if known.views:  # of memory that may be left behind
            made: Any
            for index, made in enumerate([result] if type(result) is kind else result):
                made._spec = made._spec.having(loose=True)
                _loosen(func, made, index, args, kwargs)
        for (place, x), (_, made) in zip(loose, firm, strict=True):
            if (known.names[place[0]] if isinstance(place[0], int) else place[0]) in known.written:
                x._view.written(x, made)
                result = x if result is made else result
        return result

    def _seed(self) -> torch.Tensor:
        if not self._seeded:
            self.agree("draws random numbers", (("the seed of torch's random numbers", torch.initial_seed()),))
            self._seeded = True
        return draw_seed()


MOST = 1 << 16
"""Plans that are remembered."""


class _Redirected:
    """A plan that makes another call."""

    direct = False

    def __init__(self, call: Plan) -> None:
        self.call = call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.call(args, kwargs)


class _Exact:
    """Plans that depend on the floats of a call."""

    direct = False

    def __init__(self, home: Rank, kind: type[Any], func: Any, parts: list[Any], plans: dict[str, Plan]) -> None:
        self.home, self.kind, self.func, self.parts, self.plans = home, kind, func, parts, plans

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        floats = exact_key(args, kwargs)
        found = self.plans.get(floats)
        if found is None:
            found = self.home._emitted(self.kind, self.func, args, kwargs, self.parts, floats)
            self.plans[floats] = found
        return found(args, kwargs)


class _Checked:
    """A plan before which the ranks compare the plain tensors among its operands."""

    direct = False

    def __init__(self, home: Rank, kind: type[Any], plan: Plan) -> None:
        self.home, self.kind, self.plan = home, kind, plan

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plain = [x for _, x in leaves_of(args, kwargs) if type(x) is not self.kind]
        values = [(f"a plain tensor of shape {tuple(x.shape)}", digest(x)) for x in plain]
        self.home.agree("takes plain tensors", values)
        return self.plan(args, kwargs)


def digest(x: torch.Tensor) -> int:
    """A checksum of a tensor's bytes."""
    data: Any = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(data)


def _describe(kind: type[Any], x: Any) -> tuple[TensorType, tuple[int, ...], Layout | None]:
    if type(x) is kind:
        known: Spec = x._spec
        return known.type, known.stride, known.layout
    return TensorType(tuple(x.shape), dtype_name(x.dtype)), tuple(x.stride()), None


def _unhomed(part: Any) -> Any:
    return (part.layout, part.dtype, part.stride) if isinstance(part, Spec) else part


def _loosen(func: Any, result: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    result._view = View(func, args, kwargs, index)


def _is_composite(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _is_shared(x: Any) -> bool:
    """Whether anything but `x` looks at its memory. Asking holds it twice: as an argument, and as a storage."""
    held: Any = cast(Any, torch._C)._storage_Use_Count(x._local.untyped_storage()._cdata)
    return sys.getrefcount(x._local) > 2 or held > 2


def _at(place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[place[0]] if isinstance(place[0], int) else kwargs[place[0]]
    return value if len(place) == 1 else value[place[1]]


def _with(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: list[tuple[Place, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with other tensors at some places."""
    found, named = list(args), dict(kwargs)
    for place, value in values:
        holder: Any = found if isinstance(place[0], int) else named
        if len(place) == 1:
            holder[place[0]] = value
        else:
            items: Any = list(holder[place[0]])
            items[place[1]] = value
            holder[place[0]] = items
    return tuple(found), named
