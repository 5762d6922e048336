"""Calls that give as many elements as their operands' values say: selecting by a mask, counting, finding.

They read what they depend on, as `item()` does, and what they give is there on every rank. Of a tensor that is indexed
by a mask the mask alone is read.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol

import torch

from samite.eager.calls import leaves_of, replaced

__all__ = ["Finder", "by_numbers", "depends_on_data", "find", "has_masks"]

log = logging.getLogger("samite")
aten = torch.ops.aten


class Finder(Protocol):
    def whole(self, x: Any) -> torch.Tensor:
        """The value of a distributed tensor as a plain one, not to be written to."""
        ...

    def replicated(self, kind: type[Any], value: torch.Tensor) -> Any:
        """A distributed tensor of a plain value, which becomes its own."""
        ...


@cache
def depends_on_data(func: Any) -> bool:
    """Whether the shape of what an op gives follows from values. Indexing does for masks only."""
    return torch.Tag.dynamic_output_shape in getattr(func, "tags", ()) and func not in _INDEXING


def find(home: Finder, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on whole values; what it gives is replicated."""
    operands = [(place, home.whole(x)) for place, x in leaves_of(args, kwargs) if type(x) is kind]
    log.debug("%s takes the whole of its operands: the shape of its result depends on them", func)
    args, kwargs = replaced(args, kwargs, operands)
    made = func(*args, **kwargs)
    if isinstance(made, torch.Tensor):
        return home.replicated(kind, made)
    return type(made)(home.replicated(kind, x) for x in made)


_INDEXING = frozenset(
    (aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default)
    + (aten._unsafe_index_put.default, aten._index_put_impl_.default, aten._index_put_impl.default)
)
_MASKS = (torch.bool, torch.uint8)


def has_masks(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call indexes by masks; where it writes one number to all that they select, nothing has to be known."""
    if func not in _INDEXING or not any(i is not None and i.dtype in _MASKS for i in args[1]):
        return False
    fills = len(args) > 2 and args[2].numel() == 1 and args[3:4] in ((), (False,))
    return not fills


def by_numbers(home: Finder, kind: type[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with indices in place of masks."""
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype not in _MASKS:
            indices.append(index)
            continue
        if type(index) is kind:
            log.debug("indexing takes the whole of a mask laid out as %s", index._spec.layout)
        indices += (home.whole(index) if type(index) is kind else index).nonzero().unbind(1)
    return (args[0], indices, *args[2:])
