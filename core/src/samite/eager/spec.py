"""What a call's plan may depend on of a distributed tensor, as one interned object: equal specs are the same spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from samite.ir.context import TensorType
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.sharding import dtype_name

__all__ = ["Home", "Spec", "contiguous_strides", "spec"]


class Home(Protocol):
    """Where the values of a mesh are: on this rank, or on workers."""

    mesh: Mesh

    def call(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call that no plan was found for."""
        ...


@dataclass(frozen=True, eq=False)
class Spec:
    """`layout` is canonical. `stride` and `offset` are those of the global tensor, as torch would have them on one
    device, which decide what views are of it. A `loose` tensor is a view with memory of its own: its value may be out
    of date, so no plan knows its spec."""

    home: Home
    layout: Layout
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int = 0
    loose: bool = False

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @cached_property
    def type(self) -> TensorType:
        return TensorType(self.shape, dtype_name(self.dtype))

    @cached_property
    def contiguous(self) -> bool:
        return self.offset == 0 and self.stride == contiguous_strides(self.shape)

    @cached_property
    def loosened(self) -> Spec:
        return self.having(loose=True)

    @cached_property
    def firmed(self) -> Spec:
        return self.having(loose=False)

    def having(self, **changes: Any) -> Spec:
        """This spec with other fields."""
        fields = {name: getattr(self, name) for name in ("home", "layout", "dtype", "stride", "offset", "loose")}
        return spec(**(fields | changes))


_specs: dict[tuple[Any, ...], Spec] = {}


def spec(
    home: Home,
    layout: Layout,
    dtype: torch.dtype,
    stride: tuple[int, ...] | None = None,
    offset: int = 0,
    loose: bool = False,
) -> Spec:
    """The one spec of these fields; the strides are a contiguous tensor's unless given."""
    mesh: Mapping[str, int] = home.mesh
    layout = layout.canonical(mesh)
    stride = contiguous_strides(layout.shape) if stride is None else tuple(stride)
    key = (id(home), layout, dtype, stride, offset, loose)
    found = _specs.get(key)
    if found is None:
        found = _specs.setdefault(key, Spec(home, layout, dtype, stride, offset, loose))
    return found


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
