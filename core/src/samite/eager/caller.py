"""How a call that no plan was found for is carried out, wherever its values are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from samite.eager import foreach, reads
from samite.eager.calls import Call, Place, at, facts, leaves_of, replaced
from samite.eager.devices import names_another, on_meta
from samite.eager.emission import Plan, result_specs
from samite.eager.fused import fused_parts
from samite.eager.hoisting import hoisted, numbers
from samite.eager.keys import exact_key, key_of
from samite.eager.masks import by_numbers, depends_on_data, find, has_masks
from samite.eager.placing import Placed, place_call, settled_first
from samite.eager.random import draw_seed, drawn, draws_whole
from samite.eager.shapes import change_shape, changes_shape
from samite.eager.spec import Spec
from samite.eager.tracing import aside
from samite.eager.value import PLANS
from samite.eager.views import View
from samite.ir.context import TensorType
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.sharding import dtype_name

__all__ = ["Caller", "Planned"]

MOST = 1 << 15
"""Plans that are remembered; the oldest make room."""
FEW = 64
"""The same of a call with floats that a plan has to know."""
_placed: dict[tuple[Any, ...], tuple[Any, Placed]] = {}
"""Calls by what is the same everywhere; the op is held, since it is known by its id."""


class Planned:
    """A plan with what is known of it: whether it depends on no float of the call (`direct`), and the `specs` of its
    results."""

    def __init__(self, run: Plan, *, direct: bool = False, specs: Sequence[Spec | None] = ()) -> None:
        self.run, self.direct, self.specs = run, direct, specs

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.run(args, kwargs)


class Caller:
    """Subclasses say how a placed call is carried out."""

    mesh: Mesh

    @abstractmethod
    def whole(self, x: Any) -> torch.Tensor:
        """The value of a tensor as a plain one, not to be written to."""

    @abstractmethod
    def replicated(self, kind: type[Any], value: torch.Tensor) -> Any:
        """A tensor of a plain value that all ranks have, which becomes its own."""

    @abstractmethod
    def settled(self, x: Any) -> Any:
        """A tensor with the same value that owes nothing: `x` itself, where that can be."""

    def after_settling(
        self, kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, some of which were settled: others may hold the same values."""
        return args, kwargs

    def check_seed(self) -> None:
        """Raises InputError if ranks do not draw alike."""

    def seed(self) -> torch.Tensor:
        """The seed of the next random op: 0-d int64, the same on all ranks."""
        self.check_seed()
        return draw_seed()

    @abstractmethod
    def renew(self, x: Any, view: View) -> None:
        """Give `x`, which is that view, the present value."""

    @abstractmethod
    def firm(self, x: Any) -> Any:
        """A firm tensor of the value that `x` has."""

    @abstractmethod
    def emit(self, call: Call, placed: Placed, specs: list[Spec | None], kind: type[Any]) -> Any:
        """The plan of a placed call, `specs` being those of its results: a function with attributes as `Planned`."""

    def call(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call that no plan was found for, and plan it for the next time."""
        is_one = not foreach.is_foreach(func) and _parts_of(func) is None  # else its parts are looked at
        if reads.is_read(func) or (is_one and reads.writes_plain(kind, func, args, kwargs)):
            return reads.carry_out(self, kind, func, args, kwargs)
        if depends_on_data(func):
            return find(self, kind, func, args, kwargs)
        if has_masks(func, args):
            return func(*by_numbers(self, kind, args), **kwargs)
        if names_another(kind, args, kwargs):
            return on_meta(kind, func, args, kwargs)
        if changes_shape(func):
            return change_shape(kind, func, args, kwargs)
        if draws_whole(func, kwargs):
            self.check_seed()
            return reads.carry_out(self, kind, func, args, kwargs)
        loose = [(place, x) for place, x in leaves_of(args, kwargs) if type(x) is kind and x._spec.loose]
        if loose:
            return self.firmly(kind, func, args, kwargs, loose)
        return self.plan(kind, func, args, kwargs)(args, kwargs)

    def plan(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What carries out this call, and all calls that differ from it in data alone. No tensor may be loose."""
        key = key_of(kind, func, args, kwargs)
        found = PLANS.get(key)
        if found is None:
            found = self._plan(kind, func, args, kwargs, key)
            _remember(PLANS, key, found, MOST)
        return found

    def firmly(
        self,
        kind: type[Any],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loose: list[tuple[Place, Any]],
    ) -> Any:
        """The call on the current values of loose tensors; what it writes goes where they come from."""
        firm = [(place, x._view.fresh(x)) for place, x in loose]
        result = kind.__torch_dispatch__(func, (), *replaced(args, kwargs, firm))
        known = facts(func)
        if known.views:  # of memory that may be left behind
            for index, made in enumerate([result] if type(result) is kind else result):
                made._spec = made._spec.loosened
                made._view = View(func, args, kwargs, index)
        for (place, x), (_, made) in zip(loose, firm, strict=True):
            if known.writes(place):
                x._view.written(x, made)
                result = x if result is made else result
        return result

    def _plan(
        self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: tuple[Any, ...]
    ) -> Any:
        if (random := drawn(func)) is not None:
            return Planned(lambda args, kwargs: kind.__torch_dispatch__(random, (), (self.seed(), *args), kwargs))
        if foreach.is_foreach(func):
            return Planned(foreach.plan(self, kind, func, args, kwargs))
        if (parts := _parts_of(func)) is not None:
            return Planned(lambda args, kwargs: parts(*args, **kwargs))
        floats = exact_key(args, kwargs)
        made = self._emitted(kind, func, args, kwargs, key, floats)
        if not floats or made.direct:
            return made
        return self.hoisted(kind, func, args, kwargs) or _Exact(self, kind, func, key, {floats: made})

    def hoisted(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Planned | None:
        """A plan that hands numbers on as tensors, where the op has such a form."""
        form = hoisted(func)
        if form is None or numbers(kind, args, kwargs) is None:
            return None

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = numbers(kind, args, kwargs)
            assert given is not None, "calls of one key have floats in the same places"
            return kind.__torch_dispatch__(form, (), *given)

        return Planned(run)

    def _emitted(
        self,
        kind: type[Any],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: tuple[Any, ...],
        floats: str,
    ) -> Any:
        call = Call.of(func, args, kwargs, lambda x: _describe(kind, x))
        shared = (tuple(self.mesh.items()), floats, *(_unhomed(part) for part in key))
        with aside():
            if shared not in _placed:
                _remember(_placed, shared, (func, place_call(call, self.mesh)), MOST)
            placed = _placed[shared][1]
            first = settled_first(placed, call)
            if first:
                return self._settling(kind, func, [call.leaves[i].place for i in first])
            bases = [x._spec if type(x) is kind else None for _, x in leaves_of(args, kwargs)]
            return self.emit(call, placed, result_specs(call, placed, self, bases), kind)

    def _settling(self, kind: type[Any], func: Any, places: list[Place]) -> Planned:
        """Pays what some operands owe, then calls. It stays paid, if nobody else holds their memory."""

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            paid = [(place, self.settled(at(place, args, kwargs))) for place in places]
            return kind.__torch_dispatch__(func, (), *self.after_settling(kind, *replaced(args, kwargs, paid)))

        return Planned(run)


class _Exact:
    """Plans that depend on the floats of a call."""

    direct = False

    def __init__(self, home: Caller, kind: type[Any], func: Any, key: tuple[Any, ...], plans: dict[str, Any]) -> None:
        self.home, self.kind, self.func, self.key, self.plans = home, kind, func, key, plans

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        floats = exact_key(args, kwargs)
        found = self.plans.get(floats)
        if found is None:
            found = self.home._emitted(self.kind, self.func, args, kwargs, self.key, floats)
            _remember(self.plans, floats, found, FEW)
        return found(args, kwargs)


def _remember(cache: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _describe(kind: type[Any], x: Any) -> tuple[TensorType, tuple[int, ...], Layout | None]:
    if type(x) is kind:
        known: Spec = x._spec
        return known.type, known.stride, known.layout
    return TensorType(tuple(x.shape), dtype_name(x.dtype)), tuple(x.stride()), None


def _unhomed(part: Any) -> Any:
    return (part.layout, part.dtype, part.stride) if isinstance(part, Spec) else part


@cache
def _parts_of(func: Any) -> Callable[..., Any] | None:
    """The function of other ops that an op is; None of one that is an op of its own."""
    if not isinstance(func, torch._ops.OpOverload):
        return None
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return func.decompose
    return func.impl_aten if func.namespace == "prims" else fused_parts(func)  # type: ignore[attr-defined]
