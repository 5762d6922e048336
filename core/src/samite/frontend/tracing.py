"""The trace of a capture: the user's function on stand-ins, through autograd and the optimizer, as ATen ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from samite.frontend.decompositions import table
from samite.frontend.devices import HERE
from samite.frontend.functionalizing import Mode, functionalize
from samite.frontend.refusals import refusing
from samite.frontend.state import StateTree
from samite.frontend.stepping import Step
from samite.frontend.symbols import Symbols
from samite.passes.pipeline import collector_paused

__all__ = ["trace"]


def trace(tree: StateTree, symbols: Symbols | None = None) -> tuple[GraphModule, Step]:
    """A functional graph of the call of `tree`, not yet tidied, and the step that says what its results are.

    Arguments are the leaves, in order, then the seed; with `symbols` inputs have these among their sizes, and there are
    nodes that compute sizes. Raises CaptureError; the user's objects are as before in any case.
    """
    env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False) if symbols is None else symbols.env
    fake_mode, grad = FakeTensorMode(shape_env=env), torch.is_grad_enabled()
    mode: Mode = "symbolic" if symbols else "fake"
    step = Step(tree)
    # Fakes made in inference mode could not be trained on. A collection would run code of others within the function,
    # callbacks and finalizers, and what they read would belong to its key.
    with (
        collector_paused(),
        refusing(),
        torch.inference_mode(False),
        torch.set_grad_enabled(grad),
        _without_libraries(),
    ):
        arguments = _fakes(tree, fake_mode, symbols)
        with step.recorder.recording():
            graph = make_fx(step, tracing_mode=mode, decomposition_table=table())(*arguments)
        step.recorder.finish()
        with torch.no_grad():
            _functionalize_regions(graph, mode)
            return functionalize(graph, arguments, mode), step


def _functionalize_regions(graph: GraphModule, mode: Mode) -> None:
    """The same for what control flow calls."""
    for name, region in graph.named_children():
        if isinstance(region, GraphModule):
            _functionalize_regions(region, mode)
            inputs = [node.meta["val"] for node in region.graph.find_nodes(op="placeholder")]
            setattr(graph, name, functionalize(region, inputs, mode))


@contextmanager
def _without_libraries() -> Iterator[None]:
    """oneDNN has layers of its own (LSTM) that only it can run, and NNPACK asks how large a batch is."""
    # Not torch.backends.mkldnn.flags: it sets TF32 as well, and then warns where there is no Intel GPU.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _fakes(tree: StateTree, fake_mode: FakeTensorMode, symbols: Symbols | None) -> list[Tensor]:
    """Contiguous fakes of the leaves' shapes and dtypes, and of the seed."""
    shapes: list[Sequence[int | torch.SymInt]] = [tensor.shape for tensor in tree.tensors]
    if symbols is not None:
        for number, at in enumerate(tree.inputs):
            shapes[at] = symbols.shape(number)
    with fake_mode:
        fakes = [
            torch.empty(shape, dtype=tensor.dtype, device=HERE)
            for shape, tensor in zip(shapes, tree.tensors, strict=True)
        ]
        return [*fakes, torch.empty((), dtype=torch.int64, device=HERE)]
