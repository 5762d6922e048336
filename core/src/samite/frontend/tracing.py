"""The trace of a capture: the user's function on stand-ins, through autograd and the optimizer, as ATen ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from samite.frontend.decompositions import table
from samite.frontend.devices import HERE
from samite.frontend.functionalizing import functionalize
from samite.frontend.refusals import refusing
from samite.frontend.state import StateTree
from samite.frontend.stepping import Step

__all__ = ["trace"]


def trace(tree: StateTree) -> tuple[GraphModule, Step]:
    """A functional graph of the call of `tree`, not yet tidied, and the step that says what its results are.

    Arguments are the leaves, in order, then the seed. Raises CaptureError; the user's objects are as before in any
    case.
    """
    fake_mode, grad = FakeTensorMode(), torch.is_grad_enabled()
    step = Step(tree)
    # Fakes made in inference mode could not be trained on. oneDNN has layers of its own (LSTM) that only it can run.
    with refusing(), torch.inference_mode(False), torch.set_grad_enabled(grad), _without_onednn():
        arguments = _fakes(tree, fake_mode)
        with step.recorder.recording():
            graph = make_fx(step, tracing_mode="fake", decomposition_table=table())(*arguments)
        step.recorder.finish()
        with torch.no_grad():
            return functionalize(graph, arguments), step


@contextmanager
def _without_onednn() -> Iterator[None]:
    # Not torch.backends.mkldnn.flags: it sets TF32 as well, and then warns where there is no Intel GPU.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _fakes(tree: StateTree, fake_mode: FakeTensorMode) -> list[Tensor]:
    """Contiguous fakes of the leaves' shapes and dtypes, and of the seed."""
    with fake_mode:
        fakes = [torch.empty(tensor.shape, dtype=tensor.dtype, device=HERE) for tensor in tree.tensors]
        return [*fakes, torch.empty((), dtype=torch.int64, device=HERE)]
