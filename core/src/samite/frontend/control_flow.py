"""Higher-order ops while a function is traced.

Of `torch.cond`, `while_loop`, `scan` and `map`, what their functions reach past their arguments becomes an operand, so
that each of them is a region of its own. Flex attention is written out.

Dynamo does the same for torch, by reading bytecode, on a frame of its own. Here the functions run twice: once to see
which tensors they reach, once, or as often as autograd wants, to be traced with operands in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode

from samite.errors import CaptureError
from samite.frontend.flex_attention import unchecked, written_out
from samite.frontend.lifting import Inputs, Lifting, Results
from samite.frontend.source import user_line

__all__ = ["ControlFlow", "called_directly"]


@contextmanager
def called_directly() -> Iterator[None]:
    """`torch.cond` and its kin call the higher-order op by way of `torch.compile`; here they call it themselves."""

    def plain(model: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
        return (lambda function: function) if model is None else model  # pyright: ignore[reportReturnType]

    with mock.patch.object(torch, "compile", plain), unchecked():
        yield


@dataclass
class ControlFlow:
    """The handlers of the higher-order ops. `mode` is on while their functions run, as everywhere in the step: torch
    turns a mode off while it handles an op. `forbid` holds while they run."""

    mode: TorchFunctionMode
    forbid: Callable[[str], Any]
    _around: list[Lifting] = field(default_factory=list["Lifting"])

    def handles(self, func: object) -> bool:
        return isinstance(func, torch._ops.HigherOrderOperator) and func.name() in _OPS

    def run(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The op with functions of tensors alone. Raises CaptureError where they are not that."""
        return getattr(self, f"_{func.name()}")(func, *args)

    def _cond(self, op: Any, pred: Tensor, then: Any, otherwise: Any, operands: Any) -> Any:
        if pred.numel() != 1 or pred.dtype != torch.bool:
            raise CaptureError(
                f"torch.cond: the predicate is a {pred.dtype} of shape {tuple(pred.shape)}",
                where=user_line(),
                help="give one bool: (x.sum() > 0)",
            )
        inputs = Inputs.of(operands)
        lifted = self._lifted("cond", (then, otherwise), inputs, inputs.tensors)
        first, second = lifted.results
        _agree(first.leaves, second.leaves, "the branches of torch.cond return")
        made = op(pred.reshape(()) if pred.dim() else pred, *lifted.functions, (*inputs.tensors, *lifted.captured))
        return first.rebuild(made)

    def _while_loop(self, op: Any, condition: Any, body: Any, carried: Any, additional: Any) -> Any:
        inputs = Inputs.of((*carried, *additional))
        lifted = self._lifted("while_loop", (_single(condition), body), inputs, inputs.tensors)
        told, next = lifted.results
        if [(x.dtype, x.shape) for x in told.tensors] != [(torch.bool, torch.Size())]:
            raise CaptureError("while_loop: the condition gives one bool", where=user_line())
        _agree(next.leaves, inputs.leaves, "the body of while_loop returns and is given")
        if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs.tensors, *lifted.captured)):
            raise CaptureError(
                "while_loop: gradients need the values of every iteration, and their number depends on data",
                where=user_line(),
                help="use torch's scan, whose length is a shape, or torch.no_grad()",
            )
        made = op(*lifted.functions, tuple(inputs.tensors), tuple(lifted.captured))
        return next.rebuild(made)

    def _scan(self, op: Any, combine: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
        inputs = Inputs.of((*init, *xs, *additional_inputs))
        with disable_proxy_modes_tracing():
            slices = [x.select(0, 0) for x in xs]
        lifted = self._lifted("scan", (combine,), inputs, (*init, *slices, *additional_inputs))
        (results,) = lifted.results
        returned = results.leaves[: len(init)]
        _agree(returned, list(init), "the function of scan returns and is given")
        made = op(lifted.functions[0], list(init), list(xs), (*additional_inputs, *lifted.captured))
        return results.rebuild(made)

    def _map_impl(self, op: Any, function: Any, xs: Any, others: Any) -> Any:
        inputs = Inputs.of((*xs, *others))
        with disable_proxy_modes_tracing():
            slices = [x.select(0, 0) for x in xs]
        lifted = self._lifted("map", (function,), inputs, (*slices, *others))
        (results,) = lifted.results
        return results.rebuild(op(lifted.functions[0], list(xs), [*others, *lifted.captured]))

    def _lifted(self, name: str, functions: Sequence[Any], inputs: Inputs, examples: Sequence[Tensor]) -> _Lifted:
        """Functions of the inputs and then of whatever any of them captures."""
        looking = Lifting(list(examples))
        with disable_proxy_modes_tracing():
            results = [Results.of(self._called(name, looking, inputs.call(f, examples))) for f in functions]
        for result in results:
            looking.replaced(result.tensors)  # what a function returns as it found it
        if looking.has_written():
            raise CaptureError(
                f"a function of {name} changes in place what it is given, or what it reaches",
                where=user_line(),
                help="let it return the new value; a BatchNorm that trains does not belong there",
            )
        captured = list(looking.captured)
        if self._around:
            captured = self._around[-1].replaced(captured)

        def lifted(function: Any) -> Callable[..., tuple[Tensor, ...]]:
            def run(*flat: Tensor) -> tuple[Tensor, ...]:
                given, others = flat[: len(examples)], flat[len(examples) :]
                lifting = Lifting(list(given), dict(zip(map(id, looking.captured), others, strict=True)))
                returned = Results.of(self._called(name, lifting, inputs.call(function, given)))
                # A region gives values of its own: what torch calls aliasing means nothing in a functional graph.
                return tuple(x.clone() for x in lifting.replaced(returned.tensors))

            return run

        return _Lifted([lifted(f) for f in functions], captured, results)

    def _called(self, name: str, lifting: Lifting, function: Callable[[], Any]) -> Any:
        self._around.append(lifting)
        with ExitStack() as stack:
            stack.callback(self._around.pop)
            stack.enter_context(self.forbid(name))
            # What a checkpoint does with tensors that the step saves is not for those of a function's own trace.
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_itself, _itself))
            if self.mode not in torch.overrides._get_current_function_mode_stack():  # a backward has it on
                stack.enter_context(self.mode)
            stack.enter_context(lifting)
            return function()

    def _flex_attention(self, op: Any, *args: Any) -> Any:
        with self.mode:
            return written_out(*args)


_OPS = ("cond", "while_loop", "scan", "map_impl", "flex_attention")


@dataclass
class _Lifted:
    """`functions` of tensors alone, the last of which are the `captured`; and the `results` that they give."""

    functions: list[Callable[..., tuple[Tensor, ...]]]
    captured: list[Tensor]
    results: list[Results]


def _itself(x: Tensor) -> Tensor:
    return x


def _agree(one: Sequence[Any], other: Sequence[Any], what: str) -> None:
    here, there = ([_described(x) for x in leaves] for leaves in (one, other))
    if here != there:
        raise CaptureError(
            f"{what} ({', '.join(here)}) and ({', '.join(there)})",
            where=user_line(),
            help="both must be the same number of tensors, of the same shapes and dtypes",
        )


def _described(x: object) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, Tensor) else repr(x)


def _single(condition: Callable[..., Any]) -> Callable[..., Any]:
    """The condition of a loop, which may give its bool in a shape of one element."""

    def told(*args: Any) -> Any:
        value = condition(*args)
        return value.reshape(()) if isinstance(value, Tensor) and value.dim() and value.numel() == 1 else value

    return told
