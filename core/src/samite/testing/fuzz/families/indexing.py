"""Reading and writing at places: by index, and in place through views."""

from __future__ import annotations

from samite.testing.fuzz.family import family
from samite.testing.fuzz.pool import Pool


def _indices(pool: Pool, size: int, count: int) -> str:
    return f"torch.tensor({[pool.number(0, size - 1) for _ in range(count)]}, dtype=torch.int64)"


@family(keeps=True)
def picked(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x)
    index = _indices(pool, x.size(dim), pool.number(0, 4))
    return pool.one_of(f"{x}.index_select({dim}, {index})", f"{x}[{_indices(pool, x.shape[0], 3)}]")


@family(keeps=True)
def scattered(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x) % x.ndim
    index = _indices(pool, x.size(dim), x.size(dim))
    along = f"{index}.view({[-1 if i == dim else 1 for i in range(x.ndim)]}).expand({x.shape})"
    return pool.one_of(
        f"{x}.gather({dim}, {along})", f"torch.zeros_like({x}).scatter_add({dim}, {along}, {x})",
        f"{x}.index_add({dim}, {index}, {x})", f"{x}.index_put(({_indices(pool, x.shape[0], 1)},), {x}[:1], True)",
    )  # fmt: skip


@family(keeps=True)
def written(pool: Pool) -> str:
    """A copy, written to in place, whole or through a view."""
    x = pool.with_dims()
    dim = pool.dim(x)
    start = pool.number(0, x.size(dim))
    view = f"v.narrow({dim}, {start}, {x.size(dim) - start})"
    write = pool.one_of(f"{view}.mul_(3)", f"{view}.add_(1)", f"{view}.zero_()", "v.add_(v)", f"{view}.clamp_(-1, 2)")
    return f"(v := {x}.clone(), {write}, v)[-1]"
