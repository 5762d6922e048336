"""One layer of an LSTM as torch calls it on processors, taken apart: the gates of every step, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["recurrent_layers"]

aten = torch.ops.aten


class _Step(NamedTuple):
    """The gates of a step, its states before, and after: all (batch, hidden)."""

    input: Tensor
    forget: Tensor
    new: Tensor
    output: Tensor
    hidden: Tensor
    cell: Tensor
    after: Tensor
    cell_after: Tensor


def _steps(x: Tensor, weights: tuple[Tensor, ...], hidden: Tensor, cell: Tensor, *, reverse: bool) -> list[_Step]:
    """In the order in which they are taken. `x` is (time, batch, features)."""
    w_ih, w_hh, b_ih, b_hh = weights
    h, c = hidden.reshape(-1, hidden.shape[-1]), cell.reshape(-1, cell.shape[-1])
    projected = F.linear(x, w_ih, b_ih + b_hh).unbind(0)
    steps: list[_Step] = []
    for z in reversed(projected) if reverse else projected:
        i, f, g, o = (z + F.linear(h, w_hh)).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cell_after = f * c + i * g
        steps.append(_Step(i, f, g, o, h, c, o * cell_after.tanh(), cell_after))
        h, c = steps[-1].after, cell_after
    return steps


def _in_time(steps: list[Tensor], *, reverse: bool) -> Tensor:
    return torch.stack(steps[::-1] if reverse else steps)


def _layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hidden: Tensor, cell: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What it gives at every step, the last states, and, empty here, what the kernel keeps for its gradient."""
    reverse: bool = options[0]
    steps = _steps(x, (w_ih, w_hh, b_ih, b_hh), hidden, cell, reverse=reverse)
    kept = aten.full.default([0], 0, dtype=torch.uint8, device=x.device)
    made = _in_time([step.after for step in steps], reverse=reverse)
    return made, steps[-1].after.reshape(hidden.shape), steps[-1].cell_after.reshape(cell.shape), kept


def _backward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    hidden: Tensor,
    cell: Tensor,
    output: Tensor,
    last_hidden: Tensor,
    last_cell: Tensor,
    grad_output: Tensor | None,
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    *options: Any,
) -> tuple[Tensor, ...]:
    """The layer is run again: its steps are not kept."""
    reverse: bool = options[0]
    steps = _steps(x, (w_ih, w_hh, b_ih, b_hh), hidden, cell, reverse=reverse)
    wanted = list((torch.zeros_like(output) if grad_output is None else grad_output).unbind(0))
    dh, dc = (
        torch.zeros_like(steps[0].hidden) if given is None else given.reshape(steps[0].hidden.shape)
        for given in (grad_hidden, grad_cell)
    )
    gates: list[Tensor] = []
    for step, given in zip(reversed(steps), wanted if reverse else reversed(wanted), strict=True):
        dh, tanh = dh + given, step.cell_after.tanh()
        dc = dc + dh * step.output * (1 - tanh * tanh)
        of_gates = (
            dc * step.new * step.input * (1 - step.input),
            dc * step.cell * step.forget * (1 - step.forget),
            dc * step.input * (1 - step.new * step.new),
            dh * tanh * step.output * (1 - step.output),
        )
        gates.append(torch.cat(of_gates, 1))
        dh, dc = gates[-1] @ w_hh, dc * step.forget
    dz = _in_time(gates[::-1], reverse=reverse)
    before = _in_time([step.hidden for step in steps], reverse=reverse)
    flat, bias = dz.flatten(0, 1).t(), dz.sum((0, 1))
    of_weights = flat @ x.flatten(0, 1), flat @ before.flatten(0, 1), bias, bias * 1
    return dz @ w_ih, *of_weights, dh.reshape(hidden.shape), dc.reshape(cell.shape)


def recurrent_layers() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition."""
    return {aten.mkldnn_rnn_layer.default: _layer, aten.mkldnn_rnn_layer_backward.default: _backward}
