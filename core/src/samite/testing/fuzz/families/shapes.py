"""Ops that move elements, cut dims or join them."""

from __future__ import annotations

from math import prod

from samite.testing.fuzz.family import family
from samite.testing.fuzz.pool import Pool, Value


@family(keeps=True)
def permuted(pool: Pool) -> str:
    x = pool.with_dims()
    return pool.one_of(f"{x}.transpose({pool.dim(x)}, {pool.dim(x)})", f"{x}.movedim({pool.dim(x)}, {pool.dim(x)})")


@family(keeps=True)
def regrouped(pool: Pool) -> str:
    """Dims merged and split in every way that a view can."""
    x = pool.real()
    rest, sizes = prod(x.shape), list[int]()
    if rest == 0:
        return f"{x}.flatten()"
    while rest > 1:
        divisors = [n for n in range(1, rest + 1) if rest % n == 0]
        sizes.append(pool.one_of(*divisors[::-1]))
        rest //= sizes[-1]
        if len(sizes) == 4:
            sizes.append(rest)
            break
    return f"{x}.reshape({sizes})"


@family(keeps=True)
def ones(pool: Pool) -> str:
    x = pool.real()
    if pool.flip() or not x.ndim:
        return f"{x}.unsqueeze({pool.number(-x.ndim - 1, x.ndim)})"
    return f"{x}.squeeze({pool.dim(x)})"


@family(keeps=True)
def expanded(pool: Pool) -> str:
    x = pool.real()
    sizes = [pool.number(0, 3) if size == 1 else -1 for size in x.shape]
    return f"{x}.expand({[pool.number(1, 3), *sizes]})"


@family(keeps=True)
def part(pool: Pool) -> str:
    x = pool.with_dims()
    dim = pool.dim(x)
    size = x.size(dim)
    start = pool.number(0, size)
    length = pool.number(0, size - start)
    if pool.flip() and size:
        return f"{x}.select({dim}, {pool.number(-size, size - 1)})"
    return pool.one_of(f"{x}.narrow({dim}, {start}, {length})", f"{x}[{start}::{pool.number(1, 3)}]")


@family(keeps=True)
def cut(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)  # fakes of torch 2.11 cannot cut nothing
    dim = pool.dim(x)
    if pool.flip():
        return f"{x}.chunk({pool.number(1, 4)}, {dim})[0]"
    return f"{x}.split({pool.number(1, max(x.size(dim), 1))}, {dim})[-1]"


@family(keeps=True)
def joined(pool: Pool) -> str:
    x = pool.with_dims()
    dim = pool.dim(x) % x.ndim

    def fits(value: Value) -> bool:
        return value.ndim == x.ndim and all(value.shape[i] == x.shape[i] for i in range(x.ndim) if i != dim)

    return pool.one_of(f"torch.cat([{x}, {pool.real(fits)}], {dim})", f"torch.stack([{x}, {x}], {dim})")


@family(keeps=True)
def moved(pool: Pool) -> str:
    x = pool.with_dims()
    dim = pool.dim(x)
    return pool.one_of(
        f"{x}.flip([{dim}])", f"{x}.roll({pool.number(-3, 3)}, {dim})",
        f"F.pad({x}, [{pool.number(0, 2)}, {pool.number(0, 2)}])", f"{x}.repeat_interleave({pool.number(1, 2)}, {dim})",
    )  # fmt: skip


@family(keeps=True)
def triangle(pool: Pool) -> str:
    x = pool.with_dims(2)
    return f"{x}.{pool.one_of('tril', 'triu')}({pool.number(-2, 2)})"


@family(keeps=True)
def diagonal(pool: Pool) -> str:
    return f"{pool.with_dims(2)}.diagonal({pool.number(-1, 1)}, -2, -1)"
