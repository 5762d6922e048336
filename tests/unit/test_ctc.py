"""`samite::ctc_loss` and its backward, and `F.ctc_loss` captured by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from captures import check_steps
from samite.errors import InputError
from samite.frontend import capture
from samite.ir.ctc import ctc_loss

SCORES = torch.linspace(-2, 2, 9 * 3 * 4, dtype=torch.float64).sin().mul(3).view(9, 3, 4)
ROWS = torch.tensor([[1, 2, 2], [3, 3, 3], [2, 1, 1]])
INPUTS, TARGETS = torch.tensor([9, 3, 7]), torch.tensor([2, 3, 0])
"""The second target does not fit into its inputs: three equal labels need blanks between them."""


def arguments(case: str) -> tuple[Any, ...]:
    return {
        "rows": (SCORES, ROWS, INPUTS, TARGETS),
        "one row": (SCORES, torch.tensor([1, 2, 3, 3, 3]), INPUTS, TARGETS),
        "lists": (SCORES, ROWS, [9, 9, 9], (2, 3, 1)),
        "one": (SCORES[:, 0], ROWS[0], torch.tensor(8), torch.tensor(3)),
        "32 bits": (SCORES.float(), ROWS.int(), INPUTS.int(), TARGETS.int()),
    }[case]


@pytest.mark.parametrize("case", ["rows", "one row", "lists", "one", "32 bits"])
@pytest.mark.parametrize("options", [
    {},
    {"reduction": "none", "zero_infinity": True},
    {"reduction": "sum", "blank": 3, "zero_infinity": True},
], ids=["mean", "none", "sum"])  # fmt: skip
def test_captures(case: str, options: dict[str, Any]) -> None:
    scores, *rest = arguments(case)
    if "zero_infinity" not in options and case in ("rows", "one row", "32 bits"):
        rest[1] = torch.tensor([9, 9, 9])

    def step(scores: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        scores = scores.detach().requires_grad_()
        loss = F.ctc_loss(scores.log_softmax(-1), *rest, **options)
        return loss, torch.autograd.grad(loss.sum(), scores)[0]

    check_steps(step, (scores, *rest), steps=1)


def test_shapes_do_not_depend_on_data() -> None:
    loss, alpha = ctc_loss(SCORES, ROWS, INPUTS, torch.zeros(3, dtype=torch.int64), 0, False)
    assert (loss.shape, alpha.shape) == ((3,), (3, 9, 7))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (SCORES, ROWS, INPUTS, TARGETS)]
        fake = ctc_loss(*fakes, 0, False)
    assert [x.shape for x in fake] == [loss.shape, alpha.shape]
    assert [x.stride() for x in fake] == [loss.stride(), alpha.stride()]


def test_op_registration() -> None:
    scores = SCORES.log_softmax(-1).requires_grad_()
    torch.library.opcheck(ctc_loss, (scores, ROWS, torch.tensor([9, 9, 9]), TARGETS, 0, False))


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="blank 7 is none of 4 classes"):
        capture(lambda *x: F.ctc_loss(*x, blank=7), (SCORES, ROWS, INPUTS, TARGETS))
    with pytest.raises(InputError, match="for a batch of 3"):
        capture(lambda *x: F.ctc_loss(*x), (SCORES, ROWS, INPUTS[:2], TARGETS))
