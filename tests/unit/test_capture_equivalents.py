"""Functions that look at data only to check it: captured, forward and gradient, as eager PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from captures import check_steps
from samite.errors import CaptureError
from samite.frontend import capture

PLACES = torch.tensor([2, 0])


def assigned(x: Tensor, mask: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 7
    y[i] = 3
    return y


def put(x: Tensor, mask: Tensor, i: Tensor) -> Tensor:
    y = x.index_put((mask,), x.sum(), accumulate=True)
    return y.index_put_((mask[:, 0],), y.mean())


def filled(x: Tensor, mask: Tensor, i: Tensor) -> Tensor:
    return x.index_fill(1, i, x.sum()).index_fill_(0, i, x.mean()).index_fill(0, i, 0.5)


def stft(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x.repeat(2, 2).view(2, 4, 10)[..., :8])  # (2, 4, 5): two signals of four frames
    window = torch.hann_window(6) + 0.1
    some = torch.istft(spectrum.transpose(1, 2), 8, 3, 6, window, normalized=True)
    whole = torch.istft(torch.fft.fft(x[:3, :4]).t(), 4, 2, onesided=False, center=False, length=9, return_complex=True)
    return some.sum(0)[:4] + whole.abs()[2:6] + torch.istft(spectrum[0].t(), 8)[:4]


CALLS: dict[str, Callable[..., Tensor]] = {
    "cov": lambda x, mask, i: torch.cov(x) + x.cov(correction=0),
    "cov of one variable": lambda x, mask, i: torch.cov(x[0]) + torch.cov(x.sum(), correction=0),
    "weighted cov": lambda x, mask, i: torch.cov(x, fweights=mask[0].long() + 1, aweights=x[1].abs()),
    "cov of counts": lambda x, mask, i: torch.cov(x, fweights=mask[0].long() + 1),
    "corrcoef": lambda x, mask, i: torch.corrcoef(x) * x.corrcoef()[0, 1] + torch.corrcoef(x[0]),
    "one_hot": lambda x, mask, i: F.one_hot(i, 4) * x[:2, :4],
    "combinations": lambda x, mask, i: torch.combinations(x[0], 3).sum(0),
    "combinations of equals": lambda x, mask, i: torch.combinations(x[0], with_replacement=True),
    "no combinations": lambda x, mask, i: torch.combinations(x[0, :2], 3) + x.sum(),
    "narrow": lambda x, mask, i: torch.narrow(x, 1, i[0], 2) * x.narrow(0, i[1] - 3, 1)[:, :2],
    "take": lambda x, mask, i: torch.take(x, i) + x.take(i[0]) + torch.take(x, -1 - i),
    "istft": lambda x, mask, i: stft(x),
    "masked assignment": assigned,
    "masked put": put,
    "index_fill": filled,
    "gaussian_nll_loss": lambda x, mask, i: F.gaussian_nll_loss(x, x.flip(0), x.abs()),
    "lowrank": lambda x, mask, i: (torch.svd_lowrank(x, q=3)[1] * 1.0).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_as_eager(name: str) -> None:
    def step(x: Tensor, mask: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = CALLS[name](x, mask, i)
        return y, torch.autograd.grad((y * torch.arange(y.numel()).view_as(y)).sum(), x)[0]

    x = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9], [3, 2, 3, 8, 4.0]])
    check_steps(step, (x, x > 4, PLACES), steps=1, tolerance=1e-4)


def test_classes_that_are_not_counted() -> None:
    with pytest.raises(CaptureError, match="reads a tensor's data"):
        capture(lambda i: F.one_hot(i), (PLACES,))


def test_a_branch_of_the_users_own_is_refused() -> None:
    with pytest.raises(CaptureError, match="Python branch"):
        capture(lambda x: x if torch.any(x < 0) else -x, (torch.ones(3),))
