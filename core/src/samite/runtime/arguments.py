"""What every engine checks before a step: buffers and tensors against a program's interface."""

from __future__ import annotations

import torch

from samite.errors import InputError
from samite.hal.program import Argument
from samite.layout import Layout
from samite.runtime.sharding import dtype_name

__all__ = ["check_argument", "check_layout", "missing_buffer"]


def check_argument(argument: Argument, shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Raises InputError if a global tensor is not what the program was compiled for."""
    if device != "cpu":
        raise InputError(
            f'"{argument.name}" is on {device}', help=f"engines take global tensors on the host: {argument.name}.cpu()"
        )
    if tuple(shape) != argument.layout.shape or dtype_name(dtype) != argument.dtype:
        raise InputError(
            f'"{argument.name}" is {dtype_name(dtype)}{list(shape)}, '
            f"the program takes {argument.dtype}{list(argument.layout.shape)}",
            help="call the compiled function with the same shapes, or let it compile for the new ones",
        )


def check_layout(argument: Argument, layout: Layout, dtype: torch.dtype) -> None:
    """Raises InputError if a buffer does not lie as the program takes it."""
    if layout != argument.layout or dtype_name(dtype) != argument.dtype:
        raise InputError(
            f'buffer of "{argument.name}" is {dtype_name(dtype)} laid out as {layout}, '
            f"the program takes {argument.dtype} laid out as {argument.layout}",
            help="reshard it first",
        )


def missing_buffer(buffer: int) -> InputError:
    return InputError(f"there is no buffer {buffer}", help="it was never written, or it was freed")
