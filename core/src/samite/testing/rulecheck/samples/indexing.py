"""Samples of ops that address dims by value."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, distinct_ints, floats, ints

__all__ = ["samples"]


def tables() -> Iterator[Sample]:
    for rows, shape in ((7, (4,)), (6, (3, 2)), (7, (7, 1)), (1, (2,))):
        index = ints(*shape, low=0, high=rows - 1)
        yield Sample("aten.embedding", (floats(rows, 4), index))
        yield Sample("aten.embedding_dense_backward", (floats(*shape, 4), index, rows, -1, False))
        yield Sample("aten.embedding_dense_backward", (floats(*shape, 4), index, rows, rows - 1, False))
        yield Sample("aten.embedding_dense_backward", (floats(*shape, 4), index, rows, -1, True))
    yield Sample("aten.embedding", (floats(7, 4), ints(6, low=0, high=6), 2))
    for dim in (0, -1):
        x, index = floats(7, 6), ints(5, low=0, high=5)
        yield Sample("aten.index_select", (x, dim, index))
        yield Sample("aten.index_select", (ints(7, 6), dim, index))
        source = floats(5, 6) if dim == 0 else floats(7, 5)
        yield Sample("aten.index_add", (x, dim, index, source))
        yield Sample("aten.index_add", (x, dim, index, source), {"alpha": 0.5})
    scalar, first = floats(), ints(1, low=0, high=0)  # torch takes a 0-d tensor for one of a dim
    yield Sample("aten.index_select", (scalar, 0, first))
    yield Sample("aten.index_add", (scalar, 0, first, scalar))


def filled() -> Iterator[Sample]:
    for dim in (0, -1):
        yield Sample("aten.index_fill.int_Scalar", (floats(7, 4), dim, ints(3, low=0, high=3), 0.5))
        # Its gradient asks whether indices are unique, which no program can.
        fill = (floats(7, 4), dim, ints(3, low=0, high=3), floats())
        yield Sample("aten.index_fill.int_Tensor", fill, gradient=False)


def written() -> Iterator[Sample]:
    for dim in (0, -1):
        source = floats(5, 6) if dim == 0 else floats(7, 5)
        yield Sample("aten.index_copy", (floats(7, 6), dim, distinct_ints(5, dim=0, high=5), source))
        for reduce in ("prod", "mean", "amax", "amin"):
            for include in (True, False):
                arguments = (floats(7, 6), dim, ints(5, low=0, high=5), source, reduce)
                # Its gradient counts where elements are 0, among other things.
                yield Sample("aten.index_reduce", arguments, {"include_self": include}, gradient=False)
    for name in ("index_copy", "index_add"):
        yield Sample(f"aten.{name}", (floats(), 0, ints(1, low=0, high=0), floats()))
    yield Sample("aten.index_select", (floats(), 0, ints(1, low=0, high=0)))
    yield Sample("aten.index_reduce", (floats(), 0, ints(1, low=0, high=0), floats(), "amax"), gradient=False)


def reduced() -> Iterator[Sample]:
    for dim in (0, -1):
        shape = (4, 6) if dim == 0 else (7, 3)
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            for include in (True, False):
                arguments = (floats(7, 6), dim, ints(*shape, low=0, high=5), floats(*shape), reduce)
                yield Sample("aten.scatter_reduce.two", arguments, {"include_self": include}, gradient=reduce != "prod")
    yield Sample("aten.scatter_reduce.two", (ints(7, 6), 0, ints(3, 2, low=0, high=6), ints(4, 3), "sum"))


def elements() -> Iterator[Sample]:
    for dim in (0, 1, -1):
        shape = (4, 6) if dim == 0 else (7, 3)
        x, index = floats(7, 6), ints(*shape, low=0, high=5)
        yield Sample("aten.gather", (x, dim, index))
        yield Sample("aten.scatter_add", (x, dim, index, floats(*shape)))
        # Of several elements that go to one place torch promises no order, so each goes to its own.
        rows = distinct_ints(*shape, dim=dim, high=5)
        yield Sample("aten.scatter.src", (x, dim, rows, floats(*shape)))
        yield Sample("aten.scatter.value", (x, dim, rows, 0.5))
    corner = ints(3, 2, low=0, high=1)
    yield Sample("aten.gather", (floats(7, 6), 1, corner))
    yield Sample("aten.gather", (floats(7), 0, ints(4, low=0, high=6)))
    yield Sample("aten.gather", (ints(7, 6), 1, ints(7, 1, low=0, high=5)))
    yield Sample("aten.gather", (floats(), 0, ints(low=0, high=0)))
    yield Sample("aten.gather", (floats(7), 0, ints(3, 0)))
    yield Sample("aten.scatter_add", (floats(7), 0, ints(3, 0), floats(3, 0)))
    yield Sample("aten.scatter.value", (floats(7, 6), 0, distinct_ints(3, 2, dim=0, high=6), 0.5))
    # torch has no gradient for a source that is larger than the index.
    larger = distinct_ints(3, 2, dim=1, high=5), floats(4, 3)
    yield Sample("aten.scatter.src", (floats(7, 6), 1, *larger), gradient=False)
    yield Sample("aten.scatter_add", (floats(7, 6), 1, *larger), gradient=False)
    yield Sample("aten.scatter_add", (ints(7, 6), 0, ints(4, 6, low=0, high=6), ints(4, 6)))


def advanced() -> Iterator[Sample]:
    x = floats(7, 6, 4)
    i, j = ints(5, low=-6, high=5), ints(3, 1, low=-4, high=3)
    lists = ([i], [None, i], [i, i], [None, i, j], [i, None, j], [None, None, j])
    for indices in lists:
        yield Sample("aten.index.Tensor", (x, indices))
        if None not in indices:
            yield Sample("aten._unsafe_index.Tensor", (x, indices))
    yield Sample("aten.index.Tensor", (ints(7), [ints(low=0, high=6)]))
    puts = (
        ([i], (5, 6, 4)),
        ([None, i], (7, 5, 4)),
        ([None, i, j], (7, 3, 5)),
        ([i, None, j], (3, 5, 6)),
        ([i], (5, 1, 4)),
        ([i], (4,)),
        ([i], ()),
        ([None, i, j], (3, 5)),
        ([None, i, j], (7, 1, 5)),
    )
    for indices, values in puts:
        yield Sample("aten.index_put", (x, indices, floats(*values), True))
        if None not in indices:
            yield Sample("aten._unsafe_index_put.hacked_twin", (x, indices, floats(*values), True))
    yield Sample("aten.index_put", (x, [distinct_ints(5, dim=0, high=6)], floats(5, 6, 4), False))
    for values in ((7, 5, 4), (7, 1, 4), (5, 1), (4,), ()):
        yield Sample("aten.index_put", (x, [None, distinct_ints(5, dim=0, high=5)], floats(*values)))


def samples() -> Iterator[Sample]:
    for family in (tables, filled, written, reduced, elements, advanced):
        yield from family()
