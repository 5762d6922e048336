"""The quick ways to call an op end in that op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samite.eager import kernels
from samite.ir.graph import overload

X, B = torch.randn(4, 4), torch.randn(2, 4, 4)
ARGUMENTS: tuple[tuple[Any, ...], ...] = ((X,), (X, X), (B, B), (X, X, X), (X, 2.0), (X, [16]), (X, 0, 1))


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(kernels._FUNCTIONS | kernels._METHODS))
def test_a_kernel_is_its_op(name: str) -> None:
    op = overload(name)
    quick = kernels.kernel(op)
    assert quick is not op._op
    fitting = 0
    for arguments in ARGUMENTS:
        try:
            op(*[x.clone() if isinstance(x, torch.Tensor) else x for x in arguments])
        except (RuntimeError, TypeError):
            continue
        fitting += 1
        with Seen() as seen:
            quick(*[x.clone() if isinstance(x, torch.Tensor) else x for x in arguments])
        assert op in seen.ops or name == "aten.reshape.default"  # which is made of others
    assert fitting
