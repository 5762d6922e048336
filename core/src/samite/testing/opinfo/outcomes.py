"""What became of a call: right, wrong, unsupported (why), crashed; or skipped, where plain PyTorch raises."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from samite.errors import RuleMissing, SamiteError, VerifyError, WorkerError

__all__ = ["Outcome", "Verdict", "difference", "of_error"]

Verdict = Literal["right", "wrong", "unsupported", "crashed", "skipped"]

TOLERANCE = 1e-4
"""Of float32, relative to the largest element: sums are added up in another order, and nothing else differs."""


@dataclass(frozen=True)
class Outcome:
    """`reason` says what is wrong or missing, in few words that are the same for all calls that it befalls."""

    verdict: Verdict
    reason: str = ""


def of_error(error: BaseException) -> Outcome:
    """A SamiteError refuses; a broken program, one that fails while it runs, and any other exception is a crash."""
    text = str(error.what if isinstance(error, SamiteError) else error).strip()
    text = " ".join(text.split("\n")[0].split())[:200]
    if isinstance(error, RuleMissing):
        return Outcome("unsupported", f"no rule: {text.split('(')[0].split(':')[0]}")
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    if isinstance(error, SamiteError) and not isinstance(error, (VerifyError, WorkerError)):
        return Outcome("unsupported", f"{type(error).__name__}: {text}")
    return Outcome("crashed", f"{type(error).__name__}: {text}")


def difference(made: Any, wanted: Any, *, values: bool = True) -> str:
    """Where a result is not what plain PyTorch gives; "" if nowhere. Both are whole values of one structure.

    Without `values` only shapes and dtypes are compared.
    """
    made_leaves, made_spec = pytree.tree_flatten(made)
    wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
    if len(made_leaves) != len(wanted_leaves):
        return f"{made_spec} where {wanted_spec} is expected"
    for index, (x, y) in enumerate(zip(made_leaves, wanted_leaves, strict=True)):
        if gap := _gap(x, y, values):
            return f"result {index}: {gap}"
    return ""


def _gap(x: Any, y: Any, values: bool) -> str:
    if not isinstance(y, Tensor):
        same = x == y or (isinstance(y, float) and y != y and x != x)
        return "" if same else f"{x!r}, not {y!r}"
    if not isinstance(x, Tensor):
        return f"{x!r}, not a tensor"
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{_kind(x)}, not {_kind(y)}"
    if not values or not y.numel():
        return ""
    if y.is_sparse:
        return _gap(x.to_dense(), y.to_dense(), values)
    if not (y.dtype.is_floating_point or y.is_complex()):
        count = int((x != y).sum())
        return f"{count} of {y.numel()} elements differ" if count else ""
    wide = torch.complex128 if y.is_complex() else torch.float64
    x, y = x.detach().resolve_conj().to(wide), y.detach().resolve_conj().to(wide)
    finite = y[y.isfinite()].abs()
    scale = 1 + (float(finite.max()) if finite.numel() else 0.0)
    if torch.allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
        return ""
    if count := int((x.isnan() != y.isnan()).sum()):
        return f"{count} of {y.numel()} elements are NaN and should not, or the reverse"
    return f"differs by {float((x - y).abs().nan_to_num().max()):.3g}"


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
