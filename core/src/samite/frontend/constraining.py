"""`samite.constrain`: the user's wish for a value inside of a captured function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from samite.errors import InputError
from samite.layout import from_placements

__all__ = ["capturing", "constrain", "constraints_kept"]

_capturing: ContextVar[bool] = ContextVar("samite_constraints_kept", default=False)


@contextmanager
def constraints_kept() -> Iterator[None]:
    """Within, `constrain` is an op of the trace."""
    token = _capturing.set(True)
    try:
        yield
    finally:
        _capturing.reset(token)


def capturing() -> bool:
    """Whether a compiled function is being captured here."""
    return _capturing.get()


def constrain(x: Tensor, placements: Mapping[str, object]) -> Tensor:
    """`x`, to be laid out so at this place of a compiled function: `samite.constrain(x, {"tp": Shard(1)})`.

    Axes that are not named replicate. The gradient that arrives here is laid out so as well. What is on either side
    follows by least communication. Outside of a compiled function it gives `x` itself. Raises PlacementError for a
    `Partial` and for a dim that `x` does not have; for an axis that the mesh does not have when the function is
    compiled, with this line, or if `x` lies on a mesh.
    """
    from samite.ir.constraints import constrain as op
    from samite.ir.constraints import spell

    if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"constrain takes a tensor, have a {type(x).__name__}", help="constrain each of its tensors")
    text = spell(placements)
    if _capturing.get():
        return op(x, text)
    mesh = getattr(x, "mesh", None)  # of a distributed tensor
    from_placements(x.shape, placements, mesh if isinstance(mesh, Mapping) else dict.fromkeys(placements, 1))
    return x
