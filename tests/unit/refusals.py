"""What capture refuses, and where it says that lies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samite.errors import CaptureError
from samite.frontend import capture

__all__ = ["at", "refused"]

ROOT = Path(__file__).parents[2]


def refused(fn: Callable[..., Any], *args: Any) -> CaptureError:
    with pytest.raises(CaptureError) as info:
        capture(fn, args)
    return info.value


def at(fn: Callable[..., Any], text: str) -> str:
    """The place of the line of `fn` that contains `text`."""
    lines, first = inspect.getsourcelines(fn)
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"{Path(inspect.getfile(fn)).relative_to(ROOT)}:{first + offset}"
