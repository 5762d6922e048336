"""Ops that bring the elements of a dim together, or put them in order."""

from __future__ import annotations

from samite.testing.fuzz.family import family
from samite.testing.fuzz.pool import Pool


@family(keeps=True)
def total(pool: Pool) -> str:
    x = pool.with_dims()
    return f"{x}.sum(dim={pool.dims(x)}, keepdim={pool.flip()})"


@family(keeps=True)
def grand_total(pool: Pool) -> str:
    return f"{pool.real()}.sum()"


@family(keeps=True)
def extreme(pool: Pool) -> str:
    x = pool.exact(lambda value: value.ndim > 0 and 0 not in value.shape)
    return f"{x}.{pool.one_of('amax', 'amin')}(dim={pool.dims(x)}, keepdim={pool.flip()})"


@family(keeps=False)
def moment(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim, keep = pool.dims(x), pool.flip()
    return pool.one_of(f"{x}.mean(dim={dim}, keepdim={keep})", f"{x}.var(dim={dim}, keepdim={keep}, correction=0)")


@family(keeps=False)
def normalised(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x)
    last = f"{x}.shape[-1:]"
    return pool.one_of(
        f"{x}.softmax({dim})", f"{x}.log_softmax({dim})", f"{x}.logsumexp({dim})", f"F.layer_norm({x}, {last})"
    )


@family(keeps=True)
def scan(pool: Pool) -> str:
    x = pool.with_dims()
    return f"{x}.cumsum({pool.dim(x)})"


@family(keeps=True)
def ordered(pool: Pool) -> str:
    x = pool.exact(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x)
    descending = pool.flip()
    return pool.one_of(
        f"{x}.sort(dim={dim}, descending={descending}, stable=True).values",
        f"{x}.topk({pool.number(1, x.size(dim))}, {dim}, largest={descending}).values",
        f"{x}.max({dim}).values",
    )


@family(keeps=True)
def place(pool: Pool) -> str:
    x = pool.exact(lambda value: value.ndim > 0 and 0 not in value.shape)
    return f"{x}.{pool.one_of('argmax', 'argmin')}({pool.dim(x)}, keepdim={pool.flip()}).to({x}.dtype)"
