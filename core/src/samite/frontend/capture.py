"""Capture: a Python function and a call of it, as one functional graph and the names of all that goes in and out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node

from samite.errors import CaptureError
from samite.frontend.hyperparameters import Entry
from samite.frontend.outcomes import TENSOR
from samite.frontend.places import Place
from samite.frontend.sharing import refuse_shared
from samite.frontend.slots import Kind, Leaf
from samite.frontend.source import line_of
from samite.frontend.state import StateTree
from samite.frontend.symbols import Symbols

__all__ = ["ArgumentSpec", "Capture", "ResultSpec", "capture", "capture_call"]

_lock = threading.RLock()
"""One trace at a time: tracing patches torch for the process."""


@dataclass(frozen=True)
class ArgumentSpec:
    """One argument of the graph. An input that the function changes in place is state.

    `owner` names the parameter that a gradient or optimizer state belongs to, else "".
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: str = ""


@dataclass(frozen=True)
class ResultSpec:
    """One result of the graph.

    `argument` is the index of the argument that a new state replaces; -1 for outputs and for state that did not exist
    (`StateTree.leaf(name)` creates it). `traced` is an output from which the function has not gone back to anything
    that it would train: the caller may want to.
    """

    name: str
    kind: Literal["output", "state"]
    argument: int = -1
    owner: str = ""
    traced: bool = False


@dataclass(frozen=True)
class Capture:
    """A captured call.

    `graph` takes one tensor for each of `arguments` and gives a flat tuple, one for each of `results`: first the
    outputs, then the state that changed. Argument i is leaf i of any state tree of an equal key; the seed, if the graph
    draws random numbers, comes last. `deleted` are the arguments that are absent after the call. Every node has a fake
    tensor in `meta["val"]`, and every call `meta["custom"]` (see `samite.frontend.source`). `constants` has for each
    leaf of what the function returns its value, or `TENSOR`. `read` are the hyper-parameters that the function read as
    Python values, and `places` where else it read Python's state: the graph is for these values (`Trees.key_after`).
    `stage_marks` are the numbers of the forward ops before which it called `samite.stage()`.
    """

    graph: GraphModule
    arguments: tuple[ArgumentSpec, ...]
    results: tuple[ResultSpec, ...]
    deleted: tuple[int, ...]
    output_spec: pytree.TreeSpec
    constants: tuple[Any, ...]
    read: frozenset[Entry]
    places: tuple[Place, ...] = ()
    stage_marks: tuple[int, ...] = ()

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """What the function returns, with `outputs` (one for each result of kind "output") in place of its tensors."""
        given = iter(outputs)
        leaves = [next(given) if c is TENSOR else c for c in self.constants]
        return pytree.tree_unflatten(leaves, self.output_spec)


def capture(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tree: StateTree | None = None,
) -> Capture:
    """Trace `fn(*args, **kwargs)` whole: forward, backward, optimizer. `tree` is the call's state tree if it is there.

    Nothing runs on real data, and the user's objects (parameters, gradients, optimizer state, hyper-parameters, random
    state, attributes of modules) are as before, also after an error. Raises CaptureError with the user's line for
    what a program cannot do.
    """
    return capture_call(StateTree.from_call(fn, args, kwargs) if tree is None else tree)


def capture_call(tree: StateTree, symbols: Symbols | None = None) -> Capture:
    """The capture of a call; with `symbols` among the sizes of its inputs, for `samite.frontend.symbolic`."""
    # FX's tracers bring symbolic shapes and SymPy with them, which `import samite` must not.
    from samite.frontend.tidying import set_outputs, tidy
    from samite.frontend.tracing import trace

    with _lock:
        graph, step = trace(tree, symbols)
    tidy(graph)
    placeholders = graph.graph.find_nodes(op="placeholder")
    values: Sequence[Any] = graph.graph.output_node().args[0]  # type: ignore[assignment]
    kept = [
        i
        for i, (outcome, value) in enumerate(zip(step.outcomes, values, strict=True))
        if outcome.kind == "output" or outcome.leaf < 0 or value is not placeholders[outcome.leaf]
    ]
    outcomes = [step.outcomes[i] for i in kept]
    trains = any(o.kind == "state" and (o.owner or tree.leaves[o.leaf].role == "parameter") for o in outcomes)
    results = tuple(ResultSpec(o.name, o.kind, o.leaf, o.owner, o.traced and not trains) for o in outcomes)
    replaced = {r.argument: values[i] for i, r in zip(kept, results, strict=True)}
    refuse_shared(tree, replaced)
    set_outputs(graph, kept)
    leaves = zip(tree.leaves, tree.tensors, strict=True)
    arguments = [_argument(leaf, tensor, replaced.get(at)) for at, (leaf, tensor) in enumerate(leaves)]
    if placeholders[-1].users:
        arguments.append(ArgumentSpec("rng", "rng", (), torch.int64))
    else:
        graph.graph.erase_node(placeholders[-1])
    graph.recompile()
    assert step.spec is not None
    deleted, constants = tuple(step.deleted), tuple(step.constants)
    read, marks = frozenset(step.read), tuple(step.recorder.stage_marks)
    return Capture(graph, tuple(arguments), results, deleted, step.spec, constants, read, step.places, marks)


def _argument(leaf: Leaf, tensor: Tensor, replaced: Node | None) -> ArgumentSpec:
    if replaced is not None and leaf.role == "scalar":
        raise CaptureError(
            f"{leaf.name} is changed inside the step",
            where=line_of(replaced),
            help="change it outside of the captured function, before a call: there hyper-parameters are read",
        )
    kind = leaf.kind if replaced is None else "state"
    return ArgumentSpec(leaf.name, kind, tuple(tensor.shape), tensor.dtype, leaf.owner)
