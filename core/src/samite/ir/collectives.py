"""The dialect's collectives as torch ops (`torch.ops.samite.*`): how expansions and local programs spell them in torch.

`axes` is comma joined, major axis first; `parts` is the number of peers along them, which fixes result shapes without
a mesh, `peers` the number along each of them. The kernels here serve graphs that run as plain torch code (Inductor,
expansions under test): they ask the `Endpoint` that `using` made current in this thread. The interpreter recognises
these ops and never calls the kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from samite.layout import Factor

__all__ = ["AUTO", "COLLECTIVES", "RANK_LOCAL", "Endpoint", "chosen", "current", "join_axes", "split_axes", "using"]


AUTO = "auto"
"""The `algorithm` of an all_reduce that is left to whoever carries it out."""


class Endpoint(Protocol):
    """One rank's side of every collective (`samite.hal.Communicator`), and its place on the mesh."""

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor: ...
    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor: ...
    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor: ...
    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor: ...
    def axis_index(self, axes: Sequence[str]) -> int: ...


_here = threading.local()


@contextmanager
def using(endpoint: Endpoint) -> Iterator[None]:
    """Make `endpoint` the one that collectives of this thread go through."""
    before: Endpoint | None = getattr(_here, "endpoint", None)
    _here.endpoint = endpoint
    try:
        yield
    finally:
        _here.endpoint = before


def current() -> Endpoint:
    endpoint: Endpoint | None = getattr(_here, "endpoint", None)
    if endpoint is None:
        raise RuntimeError("a samite collective ran outside a worker: no endpoint is current in this thread")
    return endpoint


def join_axes(axes: Sequence[str]) -> str:
    return ",".join(axes)


def split_axes(axes: str) -> tuple[str, ...]:
    return tuple(axes.split(",")) if axes else ()


def chosen(algorithm: str, chunk_bytes: int) -> tuple[Any, ...]:
    """The arguments of an all_reduce that say how: none unless that was chosen, so that endpoints which know no
    algorithms are never asked for one."""
    return () if algorithm == AUTO else (algorithm, chunk_bytes)


_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define("all_reduce(Tensor x, str axes, str reduce_type, str algorithm='auto', int chunk_bytes=0) -> Tensor")
_lib.define("all_gather(Tensor x, str axes, int dim, int parts) -> Tensor")
_lib.define("reduce_scatter(Tensor x, str axes, int dim, str reduce_type, int parts) -> Tensor")
_lib.define("all_to_all(Tensor x, str axes, int split_dim, int concat_dim, int parts) -> Tensor")
_lib.define("permute(Tensor x, str axes, int[] pairs) -> Tensor")
_lib.define("shard(Tensor x, str axes, int dim, int parts) -> Tensor")
_lib.define("axis_index(str axes) -> Tensor")
_lib.define("valid_length(str axes, int size, int[] peers) -> Tensor")

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
"""Ops that communicate, in `torch.ops.samite`."""
RANK_LOCAL = ("shard", "axis_index", "valid_length")
"""Ops that only ask where this rank is: `shard` is its slice of `x` cut into `parts` equal chunks of `dim`,
`valid_length` what is no padding in its chunk of `size` elements, cut by one axis after the other."""


def _all_reduce(
    x: torch.Tensor, axes: str, reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
) -> torch.Tensor:
    return current().all_reduce(x, split_axes(axes), reduce_type, *chosen(algorithm, chunk_bytes))


def _all_gather(x: torch.Tensor, axes: str, dim: int, parts: int) -> torch.Tensor:
    return current().all_gather(x, split_axes(axes), dim)


def _reduce_scatter(x: torch.Tensor, axes: str, dim: int, reduce_type: str, parts: int) -> torch.Tensor:
    return current().reduce_scatter(x, split_axes(axes), dim, reduce_type)


def _all_to_all(x: torch.Tensor, axes: str, split_dim: int, concat_dim: int, parts: int) -> torch.Tensor:
    return current().all_to_all(x, split_axes(axes), split_dim, concat_dim)


def _permute(x: torch.Tensor, axes: str, pairs: list[int]) -> torch.Tensor:
    return current().permute(x, split_axes(axes), list(zip(pairs[::2], pairs[1::2], strict=True)))


def _shard(x: torch.Tensor, axes: str, dim: int, parts: int) -> torch.Tensor:
    chunk = x.shape[dim] // parts
    return x.narrow(dim, current().axis_index(split_axes(axes)) * chunk, chunk).clone()  # an op may not return a view


def _axis_index(axes: str) -> torch.Tensor:
    return torch.tensor(current().axis_index(split_axes(axes)), dtype=torch.int64)


def _valid_length(axes: str, size: int, peers: list[int]) -> torch.Tensor:
    names = split_axes(axes)
    at = {axis: current().axis_index([axis]) for axis in names}
    _, valid = Factor(size, names).span(dict(zip(names, peers, strict=True)), at)
    return torch.tensor(valid, dtype=torch.int64)


for _name, _kernel in {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "shard": _shard,
    "axis_index": _axis_index,
    "valid_length": _valid_length,
}.items():
    _lib.impl(_name, _kernel, "CompositeExplicitAutograd")


def _resized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = size
    return x.new_empty(shape)


@torch.library.register_fake("samite::all_reduce")
def _(x: torch.Tensor, axes: str, reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("samite::permute")
def _(x: torch.Tensor, axes: str, pairs: list[int]) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("samite::all_gather")
def _(x: torch.Tensor, axes: str, dim: int, parts: int) -> torch.Tensor:
    return _resized(x, dim, x.shape[dim] * parts)


@torch.library.register_fake("samite::reduce_scatter")
def _(x: torch.Tensor, axes: str, dim: int, reduce_type: str, parts: int) -> torch.Tensor:
    return _resized(x, dim, x.shape[dim] // parts)


@torch.library.register_fake("samite::shard")
def _(x: torch.Tensor, axes: str, dim: int, parts: int) -> torch.Tensor:
    return _resized(x, dim, x.shape[dim] // parts)


@torch.library.register_fake("samite::all_to_all")
def _(x: torch.Tensor, axes: str, split_dim: int, concat_dim: int, parts: int) -> torch.Tensor:
    cut = _resized(x, split_dim, x.shape[split_dim] // parts)
    return _resized(cut, concat_dim, cut.shape[concat_dim] * parts)


@torch.library.register_fake("samite::axis_index")
def _(axes: str) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


@torch.library.register_fake("samite::valid_length")
def _(axes: str, size: int, peers: list[int]) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)
