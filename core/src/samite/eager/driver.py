"""The home of values where the ranks are other processes: calls are recorded, and sent as programs."""

from __future__ import annotations

from typing import Any

import torch

from samite.eager.caller import Caller, Planned, at
from samite.eager.calls import Call, facts, leaves_of, replaced
from samite.eager.placing import Placed
from samite.eager.remote import Remote
from samite.eager.spec import Spec, spec
from samite.eager.stream import Stream
from samite.eager.tracing import ResultType
from samite.eager.value import NOTHING, enclosing
from samite.eager.views import View, seen
from samite.layout import Layout
from samite.rules.planning import settle
from samite.runtime.session import Session

__all__ = ["Driver"]


class Driver(Caller):
    """The process that drives the workers of a session. Every tensor is loose: a handle of a buffer, or a view."""

    def __init__(self, session: Session) -> None:
        self.session, self.mesh = session, session.mesh
        self.stream = Stream(session)

    def handle(self, kind: type[Any], remote: Remote, known: Spec | None = None) -> Any:
        """A tensor whose value is that of a buffer on the workers; `known` is its spec, firm or not, if it is known."""
        known = spec(self, remote.layout, remote.dtype) if known is None else known
        made = enclosing(NOTHING, known.loosened, kind)
        made._remote, made._view = remote, _Buffer(remote)
        return made

    def call(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _SAME and isinstance(args[0]._view, _Buffer):
            return self.handle(kind, args[0]._remote, args[0]._spec)
        if func is torch.ops.aten.copy_.default and self._overwrites(kind, *args[:2]):
            # What the workers hold is not asked for: so a checkpoint can be loaded where they are gone.
            args[0]._remote.adopt(args[1].detach().to(args[0].dtype, copy=True))
            return args[0]
        return super().call(kind, func, args, kwargs)

    def whole(self, x: Any) -> torch.Tensor:
        lies = not x._spec.loose or isinstance(x._view, _Buffer)
        return (x if lies else x._view.fresh(x))._remote.host()

    def replicated(self, kind: type[Any], value: torch.Tensor) -> Any:
        return self.adopted(kind, value, Layout.replicated(value.shape))

    def adopted(self, kind: type[Any], value: torch.Tensor, layout: Layout) -> Any:
        """A tensor of a plain value, which becomes its own, laid out so."""
        remote = Remote(self.session, self.session.number(), layout, value.dtype)
        remote.adopt(value)
        return self.handle(kind, remote)

    def settled(self, x: Any) -> Any:
        self.stream.relay(x._remote, settle(x._spec.layout).canonical(self.mesh))
        return self.firm(x)

    def after_settling(
        self, kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        firm = [(place, self.firm(x)) for place, x in leaves_of(args, kwargs) if type(x) is kind]
        return replaced(args, kwargs, firm)

    def renew(self, x: Any, view: View) -> None:
        op = seen(view.func, view.literals, view.kwargs, view.index)
        x._remote = type(x).__torch_dispatch__(op, (), (view.base,), {})._remote

    def firm(self, x: Any) -> Any:
        x._remote.unpin()
        known: Spec = x._spec
        if known.layout is not x._remote.layout:  # a program has made it another one
            known = x._spec = known.having(layout=x._remote.layout)
        made = enclosing(NOTHING, known.firmed, type(x))
        made._remote = x._remote
        return made

    def relay(self, remote: Remote, layout: Layout) -> Remote:
        """Another buffer with the same value, laid out so."""
        if not remote.on_workers:
            other = Remote(self.session, self.session.number(), layout, remote.dtype)
            other.adopt(remote.host())
            return other
        return self.stream.relaid(remote, layout)

    def _plan(
        self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: tuple[Any, ...]
    ) -> Any:
        """Programs hold literals, so numbers are handed on wherever they can be."""
        return self.hoisted(kind, func, args, kwargs) or super()._plan(kind, func, args, kwargs, key)

    def emit(self, call: Call, placed: Placed, specs: list[Spec | None], kind: type[Any]) -> Any:
        if facts(call.func).views:
            return Planned(lambda args, kwargs: self._lazily(placed, specs, kind))
        graph = placed.module.graph
        places = [leaf.place for leaf in call.leaves]
        written = placed.traced.written
        layouts = placed.layouts[len(placed.layouts) - len(written) :]

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensors = [at(place, args, kwargs) for place in places]
            operands = [x._remote if type(x) is kind else x for x in tensors]
            new = [(self._new(known), known) for known in specs if known is not None]
            results = [(remote, known.layout) for remote, known in new]
            results += [(operands[i], layout) for i, layout in zip(written, layouts, strict=True)]
            self.stream.record(graph, operands, results)
            made = iter([self.handle(kind, remote, known) for remote, known in new])
            found = [
                next(made) if isinstance(r, ResultType) else r if r is None else tensors[r] for r in placed.results
            ]
            return _shaped(found, placed.traced.shape)

        return Planned(run)

    def _lazily(self, placed: Placed, specs: list[Spec | None], kind: type[Any]) -> Any:
        """Views, whose values are computed when somebody asks."""
        made = [enclosing(NOTHING, known, kind) for known in specs if known is not None]
        return _shaped(made, placed.traced.shape)

    def _new(self, known: Spec) -> Remote:
        return Remote(self.session, self.session.number(), known.layout, known.dtype)

    def _overwrites(self, kind: type[Any], x: Any, value: Any) -> bool:
        whole = type(x) is kind and isinstance(x._view, _Buffer)
        return whole and type(value) is not kind and value.shape == x.shape


class _Buffer:
    """The source of a handle."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def fresh(self, x: Any) -> Any:
        return x._spec.home.firm(x)

    def written(self, x: Any, firm: Any) -> None:
        """The op that wrote is recorded as one that gives the buffer its next value."""

    def stamp(self, x: Any) -> object:
        return self.remote.version


_SAME = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))


def _shaped(found: list[Any], shape: str) -> Any:
    match shape:
        case "one":
            return found[0]
        case "none":
            return None
        case "tuple":
            return tuple(found)
        case _:
            return found
