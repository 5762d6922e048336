"""A bounded part of PyTorch's own samples of its ops: `op_db` of `torch.testing._internal`."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree

from samite.errors import ConfigError
from samite.testing.opinfo.calls import OpCall

__all__ = ["Drawn", "dtypes_of", "entries", "generator_of", "names", "samples"]

LARGEST = 20_000
"""Elements of a sample's largest tensor: larger ones test kernels, not layouts."""
SEEN = 200
"""Samples of an op among which to choose; some have thousands."""


UNDEFINED = ("empty*", "new_empty*", "resize_*")
"""Entries whose values are whatever was in memory."""


@dataclass(frozen=True)
class Drawn:
    """A sample: the call, what of its outputs has a gradient, and whether the op is the one that writes in place."""

    call: OpCall
    process: Callable[[Any], Any]
    in_place: bool = False


@cache
def entries() -> dict[str, Any]:
    """The database by full name ("add", "std.unbiased"). Raises ConfigError where torch's test helpers are missing."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise ConfigError(
            f"PyTorch's op database cannot be imported: {error}", help="pip install expecttest numpy scipy"
        ) from error
    return {entry.full_name: entry for entry in op_db}


def names(pattern: str = "*") -> list[str]:
    """The entries that a pattern names, in the order of the database."""
    return [name for name in entries() if fnmatchcase(name, pattern)]


def dtypes_of(entry: Any) -> list[torch.dtype]:
    """The dtypes that matter for an entry: a main one (complex only where nothing else is), integers, bool."""
    supported = entry.dtypes
    found = [d for d in (torch.float32, torch.complex64) if d in supported][:1]
    found += [d for d in (torch.int64, torch.bool) if d in supported]
    return found or sorted(supported, key=str)[:1]


def generator_of(name: str, seed: int) -> tuple[torch.Generator, random.Random]:
    """Sources of randomness that depend on the entry and the seed alone, not on what ran before."""
    number = zlib.crc32(f"{seed} {name}".encode())
    return torch.Generator().manual_seed(number), random.Random(number)


def samples(name: str, dtype: torch.dtype, limit: int, seed: int = 0) -> Iterator[Drawn]:
    """Up to `limit` samples of an entry: one with the most dims to split, which its in-place form is given too, and
    others drawn from those that it has."""
    entry = entries()[name]
    learn = dtype in entry.supported_backward_dtypes("cpu") if entry.supports_autograd else False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{seed} {name} {dtype}".encode()))
        drawn = entry.sample_inputs("cpu", dtype, requires_grad=learn, set_seed=False)
        kept = [s for s in itertools.islice(drawn, SEEN) if _fits(s)]
    _, chance = generator_of(f"{name} {dtype}", seed)
    places = sorted(range(len(kept)), key=lambda i: -_dims(kept[i]))
    others = chance.sample(places[1:], max(min(limit, len(kept)) - 1, 0))
    defined = not any(fnmatchcase(name, pattern) for pattern in UNDEFINED)
    for place in [*places[: min(limit, 1)], *others]:
        sample = kept[place]
        given = (sample.input, *sample.args), sample.kwargs, defined
        yield Drawn(OpCall.of(_unseeded(entry.op), *given), sample.output_process_fn_grad)
        if place == places[0] and entry.inplace_variant is not None and not sample.broadcasts_input:
            yield Drawn(OpCall.of(_unseeded(entry.inplace_variant), *given), sample.output_process_fn_grad, True)


def _unseeded(op: Callable[..., Any]) -> Callable[..., Any]:
    """The database has random ops seed torch inside of the call, which a program cannot."""
    from torch.testing._internal import common_methods_invocations

    def direct(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(common_methods_invocations, "wrapper_set_seed", direct):
            return op(*args, **kwargs)

    return call


def _fits(sample: Any) -> bool:
    return all(x.numel() <= LARGEST for x in _tensors(sample))


def _dims(sample: Any) -> int:
    return sum(x.dim() for x in _tensors(sample))


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [x for x in leaves if isinstance(x, torch.Tensor)]
