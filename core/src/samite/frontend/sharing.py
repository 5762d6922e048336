"""Tensors of a call that are different objects over one memory: a program has each as a value of its own."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from samite.errors import CaptureError
from samite.frontend.state import StateTree

__all__ = ["refuse_shared"]

_PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def refuse_shared(tree: StateTree, changed: Collection[int]) -> None:
    """Raises CaptureError if a leaf of `changed` shares elements with another leaf: on one device that would change
    too. Views of one buffer that do not overlap are legal."""
    spans: dict[int, list[tuple[int, int, int]]] = {}  # storage -> (first byte, one past the last, leaf)
    for at, tensor in enumerate(tree.tensors):
        if type(tensor) in _PLAIN and tensor.numel():
            first = int(tensor.storage_offset()) * tensor.itemsize
            steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            span = first, first + (int(steps) + 1) * tensor.itemsize, at
            spans.setdefault(tensor.untyped_storage()._cdata, []).append(span)
    for shared in spans.values():
        for first, last, at in shared if len(shared) > 1 else ():
            other = next((b for start, end, b in shared if b != at and start < last and first < end), None)
            if at in changed and other is not None:
                one, two = tree.leaves[at].name, tree.leaves[other].name
                raise CaptureError(
                    f"{one}, which the step changes, shares memory with {two}",
                    help="make them one tensor (other.weight = weight), or pass a copy: x.clone()",
                )
