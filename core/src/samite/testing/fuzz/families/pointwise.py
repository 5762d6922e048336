"""Ops on each element."""

from __future__ import annotations

from samite.testing.fuzz.family import family
from samite.testing.fuzz.pool import Pool


@family(keeps=True)
def whole_pointwise(pool: Pool) -> str:
    x = pool.real()
    return pool.one_of(f"-{x}", f"{x} * 2", f"{x} - 1", f"1 - {x}", f"{x}.square()")


@family(keeps=True)
def bent(pool: Pool) -> str:
    """Their gradients jump."""
    x = pool.exact()
    y = pool.beside(x, exact=True)
    return pool.one_of(
        f"{x}.abs()", f"{x}.relu()", f"{x}.clamp(-3, 5)", f"torch.maximum({x}, {y})", f"torch.minimum({x}, {y})"
    )


@family(keeps=False)
def smooth(pool: Pool) -> str:
    x = pool.real()
    return pool.one_of(
        f"{x}.tanh()", f"{x}.sin()", f"{x}.sigmoid()", f"F.gelu({x})", f"F.silu({x})", f"{x}.tanh().exp()",
        f"({x} * {x} + 1).sqrt()", f"({x} * {x} + 1).log()", f"1 / ({x} * {x} + 1)", f"{x} / 3", f"F.softplus({x})",
    )  # fmt: skip


@family(keeps=True)
def pair(pool: Pool) -> str:
    x = pool.real()
    y = pool.beside(x)
    return pool.one_of(f"{x} + {y}", f"{x} - {y}", f"{x} * {y}")


@family(keeps=False)
def quotient(pool: Pool) -> str:
    x = pool.real()
    y = pool.beside(x)
    return f"{x} / ({y} * {y} + 1)"


@family(keeps=True)
def choice(pool: Pool) -> str:
    x = pool.exact()
    return f"torch.where({x} > {pool.number(-2, 2)}, {x}, {pool.beside(x)})"


@family(keeps=True)
def mask(pool: Pool) -> str:
    x = pool.exact()
    return pool.one_of(
        f"{x}.masked_fill({x} == {pool.number(-2, 2)}, 7)", f"({x} >= 1).to({x}.dtype)", f"{x}.sign()",
        f"({x} / 2).floor()", f"{x}.remainder(3)",
    )  # fmt: skip
