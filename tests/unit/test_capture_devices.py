"""Programs know no devices: what moves tensors in the user's code moves nothing, and autocast is autocast."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from captures import train_step
from models import GPT, MLP, batch
from samite.frontend import Capture, capture

TOKENS = batch(32, 2, 16)


def ops(captured: Capture) -> Counter[str]:
    return Counter(str(n.target) for n in captured.graph.graph.nodes if n.op == "call_function")


def test_moving_a_tensor_is_nothing() -> None:
    def moves(x: Tensor) -> Tensor:
        x = x.cuda().to("cuda:0").to(torch.device("cuda"), torch.float64).cpu()
        x = x.to(torch.zeros(1, device="cuda"), copy=True) + torch.arange(3, device="cuda", dtype=torch.float32)
        with torch.device("cuda"):
            return x + torch.ones(3) + torch.rand(3)

    captured = capture(moves, (torch.ones(3),))
    assert not [n for n in captured.graph.graph.nodes if "device" in n.kwargs]
    value = captured.graph(torch.ones(3), torch.tensor(0))[0]
    assert value.dtype == torch.float32
    assert (value >= torch.tensor([2.0, 3.0, 4.0])).all()


def test_default_devices() -> None:
    torch.set_default_device("cuda")
    try:
        captured = capture(lambda x: x + torch.ones(3), (torch.ones(3, device="cpu"),))
    finally:
        torch.set_default_device(None)
    assert captured.graph(torch.ones(3))[0].tolist() == [2.0, 2.0, 2.0]


def step(device: str, dtype: torch.dtype | None) -> Any:
    def run(model: nn.Module, optimizer: torch.optim.Optimizer, *data: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype):
            loss = model(*data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return run


@pytest.mark.parametrize("make", [lambda: GPT(layers=1, dropout=0.1), MLP], ids=["gpt", "mlp"])
def test_autocast_of_an_accelerator(make: Any) -> None:
    model = make()
    data = TOKENS if isinstance(model, GPT) else (torch.randn(2, 16), torch.zeros(2).long())
    args = (model, torch.optim.AdamW(model.parameters()), *data)
    here, there = (capture(step(d, torch.bfloat16), args) for d in ("cpu", "cuda"))
    assert ops(here) == ops(there)
    assert ops(here)["aten._to_copy.default"] > 0
    # The default is the accelerator's own.
    half = capture(step("cuda", None), args)
    dtypes = {n.kwargs.get("dtype") for n in half.graph.graph.nodes if str(n.target) == "aten._to_copy.default"}
    assert torch.get_autocast_dtype("cuda") in dtypes
    assert not torch.is_autocast_enabled("cuda")


def test_autocast_around_the_call() -> None:
    model = MLP()
    args = (model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 16), torch.zeros(2).long())
    plain = capture(train_step, args)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        cast = capture(train_step, args)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
    assert ops(plain)["aten._to_copy.default"] < ops(cast)["aten._to_copy.default"]


def test_autocast_within_a_checkpoint() -> None:
    def run(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=False)
        y.float().sum().backward()
        return y

    model = MLP(layers=1)
    captured = capture(run, (model, torch.randn(2, 16)))
    products = [n for n in captured.graph.graph.nodes if str(n.target) == "aten.addmm.default"]
    assert len(products) == 3  # the last layer's is not needed again
    assert {n.meta["val"].dtype for n in products} == {torch.bfloat16}


def test_models_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = MLP()
    captured = capture(model, (torch.empty(2, 16, device="meta"),))
    real = MLP()
    values = [p.detach() for p in real.parameters()]
    x = torch.randn(2, 16)
    torch.testing.assert_close(captured.graph(*values, x)[0], real(x).detach())
