"""The ops that programs are made of. Each function draws one call of a family as an expression in torch.

`keeps` says that the result is exact if the operands are: whole numbers stay whole, and are the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from samite.testing.fuzz.pool import Pool, Value

__all__ = ["FAMILIES", "Family"]

Draw = Callable[[Pool], str]


class Family:
    """One way to go on with a program."""

    def __init__(self, draw: Draw, keeps: bool) -> None:
        self.draw, self.keeps = draw, keeps

    def __repr__(self) -> str:
        return self.draw.__name__


FAMILIES: list[Family] = []


def family(*, keeps: bool) -> Callable[[Draw], Draw]:
    def add(draw: Draw) -> Draw:
        FAMILIES.append(Family(draw, keeps))
        return draw

    return add


def _size(value: Value, dim: int) -> int:
    return value.tensor.shape[dim]


# ---- pointwise


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


# ---- reductions and scans


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
        f"{x}.topk({pool.number(1, _size(x, dim))}, {dim}, largest={descending}).values",
        f"{x}.max({dim}).values",
    )


@family(keeps=True)
def place(pool: Pool) -> str:
    x = pool.exact(lambda value: value.ndim > 0 and 0 not in value.shape)
    return f"{x}.{pool.one_of('argmax', 'argmin')}({pool.dim(x)}, keepdim={pool.flip()}).to({x}.dtype)"


# ---- shape


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
    size = _size(x, dim)
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
    return f"{x}.split({pool.number(1, max(_size(x, dim), 1))}, {dim})[-1]"


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


# ---- products


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


# ---- indexing


def _indices(pool: Pool, size: int, count: int) -> str:
    return f"torch.tensor({[pool.number(0, size - 1) for _ in range(count)]}, dtype=torch.int64)"


@family(keeps=True)
def picked(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x)
    index = _indices(pool, _size(x, dim), pool.number(0, 4))
    return pool.one_of(f"{x}.index_select({dim}, {index})", f"{x}[{_indices(pool, x.shape[0], 3)}]")


@family(keeps=True)
def scattered(pool: Pool) -> str:
    x = pool.real(lambda value: value.ndim > 0 and 0 not in value.shape)
    dim = pool.dim(x) % x.ndim
    index = _indices(pool, _size(x, dim), _size(x, dim))
    along = f"{index}.view({[-1 if i == dim else 1 for i in range(x.ndim)]}).expand({x.shape})"
    return pool.one_of(
        f"{x}.gather({dim}, {along})", f"torch.zeros_like({x}).scatter_add({dim}, {along}, {x})",
        f"{x}.index_add({dim}, {index}, {x})", f"{x}.index_put(({_indices(pool, x.shape[0], 1)},), {x}[:1], True)",
    )  # fmt: skip


# ---- in place


@family(keeps=True)
def written(pool: Pool) -> str:
    """A copy, written to in place, whole or through a view."""
    x = pool.with_dims()
    dim = pool.dim(x)
    start = pool.number(0, _size(x, dim))
    view = f"v.narrow({dim}, {start}, {_size(x, dim) - start})"
    write = pool.one_of(f"{view}.mul_(3)", f"{view}.add_(1)", f"{view}.zero_()", "v.add_(v)", f"{view}.clamp_(-1, 2)")
    return f"(v := {x}.clone(), {write}, v)[-1]"
