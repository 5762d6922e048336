"""Matrix products and contractions."""

from __future__ import annotations

from samite.testing.fuzz.family import family
from samite.testing.fuzz.pool import Pool


@family(keeps=True)
def product(pool: Pool) -> str:
    x = pool.with_dims()
    inner = x.shape[-1]
    y = pool.with_dims()
    if y.ndim == 1 and y.shape == [inner]:
        return f"torch.matmul({x}, {y})"
    if y.ndim == 2 and y.shape[0] == inner:
        return f"torch.matmul({x}, {y})"
    if y.ndim == 2 and y.shape[1] == inner:
        return f"F.linear({x}, {y})"
    return f"torch.matmul({x}, {x}.transpose(-2, -1))" if x.ndim > 1 else f"torch.outer({x}, {x})"


@family(keeps=True)
def contraction(pool: Pool) -> str:
    x = pool.with_dims(2)
    return pool.one_of(
        f"torch.einsum('...ij,...kj->...ik', {x}, {x})", f"torch.einsum('...ij->...ji', {x})",
        f"torch.einsum('...ij,...ij->...i', {x}, {x})",
    )  # fmt: skip
