"""The programs of one structure of calls: one for each set of sizes that its inputs come in.

Inputs of training steps differ in size (the last batch of an epoch, the length of sequences) while all else stays. The
first program is captured at its sizes. When other sizes come, the function is captured a second time, with symbols for
the sizes that changed, and from then on a program for new sizes is made from that graph, without running the function.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from samite.api.step import Step
from samite.errors import SamiteError
from samite.frontend import Capture, StateTree, capture
from samite.frontend.source import line_of_traceback
from samite.frontend.symbols import Dim, Group, Sizes, varying

if TYPE_CHECKING:
    from samite.frontend.symbolic import SymbolicCapture

__all__ = ["Compilation", "Programs"]

log = logging.getLogger("samite")

Origin = Literal["capture", "symbolic capture", "instance"]


@dataclass(frozen=True)
class Compilation:
    """One program of a compiled function: the `shapes` of the inputs that it is for, and how it was made in `seconds`.

    `origin` is "capture" (the function was traced at these sizes), "symbolic capture" (traced with symbols for sizes
    that vary) or "instance" (of an earlier symbolic capture: the function was not run). `seconds` last up to the
    program; loading it on the workers follows.
    """

    shapes: Mapping[str, tuple[int, ...]]
    origin: Origin
    seconds: float


class Programs:
    """`build` makes a step of a capture; each is noted in `made`. With `dynamic` False every size is captured, with
    True symbols are for all sizes from the first call on."""

    def __init__(
        self, name: str, dynamic: bool | None, build: Callable[[StateTree, Capture], Step], made: list[Compilation]
    ) -> None:
        self._name, self._dynamic, self._build, self._made = name, dynamic, build, made
        self.steps: dict[Sizes, Step] = {}
        self._plain: tuple[Sizes, Capture] | None = None  # a capture without symbols
        self._symbolic: list[SymbolicCapture] = []
        self._fixed: set[Dim] = set()  # dims for which a symbol does not do

    def holds(self, sizes: Sizes) -> bool:
        """Whether a graph with symbols is for these sizes, so that a program for them needs no capture."""
        return any(known.holds(sizes) for known in self._symbolic)

    def make(self, tree: StateTree) -> Step:
        """The step for the sizes of this call, from now on in `steps`. Raises what capturing and building raise."""
        started = time.perf_counter()
        step, origin = self._make(tree)
        self.steps[tree.sizes] = step
        shapes = {tree.leaves[at].name: shape for at, shape in zip(tree.inputs, tree.sizes, strict=True)}
        self._made.append(Compilation(shapes, origin, time.perf_counter() - started))
        if len(self.steps) > 1:
            log.info("%s: a program for %s (%s), %.2f s", self._name, _spell(shapes), origin, self._made[-1].seconds)
        return step

    def _make(self, tree: StateTree) -> tuple[Step, Origin]:
        for known in self._symbolic:
            if known.holds(tree.sizes):
                from samite.passes.pipeline import collector_paused

                with collector_paused():
                    return self._build(tree, known.at(tree.sizes)), "instance"
        step, reasons = self._with_symbols(tree, self._groups(tree))
        plain = self._without_symbols(tree) if step is None else step
        self._fix(reasons, tree)  # not before: what is wrong without symbols, too, is no reason
        return plain, "capture" if step is None else "symbolic capture"

    def _groups(self, tree: StateTree) -> Sequence[Group]:
        if self._dynamic is False or (self._dynamic is None and not self.steps):
            return ()
        return varying(self.steps, tree.sizes, self._fixed)

    def _with_symbols(self, tree: StateTree, groups: Sequence[Group]) -> tuple[Step | None, Mapping[Dim, str]]:
        """A step, if symbols do, and the dims for which they do not, with the reason."""
        from samite.frontend.symbolic import capture_symbolically

        if not groups:
            return None, {}
        if self._plain is None:
            self._plain = tree.sizes, capture(tree.call.given, tree=tree)
        try:
            made = capture_symbolically(tree, groups, *self._plain)
            step = self._build(tree, made.at(tree.sizes)) if made.varies else None
        except Exception as error:
            return None, {dim: _why(error) for group in groups for dim in group}
        if step is not None:
            self._symbolic.append(made)
        return step, {dim: f"the function needs it ({line or 'no line is known'})" for dim, line in made.fixed.items()}

    def _without_symbols(self, tree: StateTree) -> Step:
        if self._plain is None or self._plain[0] != tree.sizes:
            self._plain = tree.sizes, capture(tree.call.given, tree=tree)
        return self._build(tree, self._plain[1])

    def _fix(self, dims: Mapping[Dim, str], tree: StateTree) -> None:
        """From now on no symbols for `dims`, each for the reason that it maps to."""
        self._fixed.update(dims)
        alike: dict[str, list[str]] = {}
        for dim, why in dims.items():
            alike.setdefault(why, []).append(f"dim {dim.dim} of {tree.leaves[tree.inputs[dim.input]].name}")
        for why, names in alike.items():
            log.info("%s: one program a size of %s: %s", self._name, " and ".join(names), why)


def _why(error: Exception) -> str:
    what, where = (error.what, error.where) if isinstance(error, SamiteError) else (str(error), "")
    where = where or line_of_traceback(error.__traceback__)
    return f"{what} ({where})" if where else what


def _spell(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
