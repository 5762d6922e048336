"""Errors of torch's tracing, told in the user's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from samite.errors import CaptureError, SamiteError
from samite.frontend.failures import quiet, told
from samite.frontend.source import line_of_traceback

__all__ = ["refusing"]

_DATA = (DataDependentOutputException, GuardOnDataDependentSymNode)


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what tracing cannot do into CaptureError, and what torch's functions cannot do with their arguments into
    InputError; errors of the user's own code pass."""
    try:
        with quiet():
            yield
    except SamiteError:
        raise
    except _DATA as error:
        raise CaptureError(
            "Python reads a tensor's data, which cannot be captured",
            where=line_of_traceback(error.__traceback__),
            help="use torch.where or torch.cond instead of a branch, or return the tensor and read it outside",
        ) from error
    except DynamicOutputShapeException as error:
        raise CaptureError(
            f"the shape of {error.func} depends on data, which cannot be captured",
            where=line_of_traceback(error.__traceback__),
            help="use torch.where with three arguments, or multiply by a mask",
        ) from error
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise CaptureError(
            f"an op cannot be traced: {error}",
            where=line_of_traceback(error.__traceback__),
            help="a custom op needs a fake implementation: torch.library.register_fake",
        ) from error
    except Exception as error:
        if "its data is not allocated yet" in str(error):
            raise CaptureError(
                "an op reads a tensor's data on the host, which cannot be captured",
                where=line_of_traceback(error.__traceback__),
                help="pass Python numbers where the op takes them too",
            ) from error
        if (known := told(error)) is None:
            raise
        raise known from None  # what follows in the traceback is torch's own code
