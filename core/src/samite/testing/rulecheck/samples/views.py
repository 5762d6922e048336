"""Samples of ops that move elements, cut dims and join them."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, bools, floats, ints

__all__ = ["samples"]


def regrouped() -> Iterator[Sample]:
    reshapes = (
        ((4, 6), (24,)),
        ((24,), (2, 3, 4)),
        ((7, 4), (28,)),
        ((4, 6), (2, 12)),
        ((6, 1, 4), (3, 2, 4)),
        ((1,), ()),
    )
    for before, after in reshapes:
        for name in ("view", "reshape", "_unsafe_view"):
            yield Sample(f"aten.{name}", (floats(*before), list(after)))
    yield Sample("aten.view", (floats(4, 6), [-1]))
    yield Sample("aten.view", (ints(0, 6), [3, 0]))
    yield Sample("aten._reshape_alias", (floats(4, 6), [24], [1]))
    yield Sample("aten.flatten.using_ints", (floats(3, 4, 2), 0, 1))
    yield Sample("aten.unflatten.int", (floats(3, 6), 1, [2, 3]))
    yield Sample("aten.squeeze", (floats(7, 1, 4),))
    yield Sample("aten.squeeze.dim", (floats(7, 1, 4), 1))
    yield Sample("aten.squeeze.dim", (floats(7, 4), 1))
    yield Sample("aten.squeeze.dims", (floats(1, 7, 1), [0, 2]))
    for dim in (0, 1, -1):
        yield Sample("aten.unsqueeze", (floats(7, 4), dim))


def moved() -> Iterator[Sample]:
    yield Sample("aten.t", (floats(7, 4),))
    yield Sample("aten.t", (floats(7),))
    for dims in ((0, 1), (-1, 0), (1, 1)):
        yield Sample("aten.transpose.int", (floats(7, 4, 1), *dims))
    yield Sample("aten.permute", (floats(7, 4, 3), [2, 0, 1]))
    yield Sample("aten.permute", (floats(7, 4, 3), [0, -1, -2]))
    yield Sample("aten.expand", (floats(7, 1), [7, 4]))
    yield Sample("aten.expand", (floats(4), [7, -1]))
    yield Sample("aten.expand", (floats(), [7]))
    yield Sample("aten.expand", (floats(3, 1, 4), [2, 3, 6, 4]))
    yield Sample("aten.repeat", (floats(7, 4), [1, 3]))
    yield Sample("aten.repeat", (floats(4), [3, 2]))
    yield Sample("aten.flip", (floats(7, 4), [0]))
    yield Sample("aten.flip", (floats(7, 4), [-1, 0]))
    yield Sample("aten.roll", (floats(7, 4), [2], [1]))
    yield Sample("aten.roll", (floats(7, 4), [2], []))
    for name in ("tril", "triu"):
        for diagonal in (-1, 0, 2):
            yield Sample(f"aten.{name}", (floats(7, 4), diagonal))
        yield Sample(f"aten.{name}", (bools(2, 4, 7),))


def cuts() -> Iterator[Sample]:
    """Equal parts, parts of a common unit (grouped heads), and parts with none."""
    yield Sample("aten.split.Tensor", (floats(7, 12), 4, -1))
    yield Sample("aten.split.Tensor", (floats(21, 2), 7, 0))
    yield Sample("aten.split.Tensor", (floats(7, 4), 3))
    yield Sample("aten.split_with_sizes", (floats(7, 12), [6, 3, 3], 1))
    yield Sample("aten.split_with_sizes", (floats(2, 16), [8, 4, 4], -1))
    yield Sample("aten.split_with_sizes", (floats(7, 4), [1, 3, 3]))
    yield Sample("aten.split_with_sizes", (floats(7, 4), [7, 0]))
    yield Sample("aten.cat", ([floats(7, 4), floats(7, 4), floats(7, 4)], 1))
    yield Sample("aten.cat", ([floats(6, 4), floats(3, 4)],))
    yield Sample("aten.cat", ([floats(7, 4), floats(2, 4)],))
    yield Sample("aten.cat", ([floats(0), floats(7, 4)], -1))
    yield Sample("aten.stack", ([floats(7, 4), floats(7, 4)], 1))
    yield Sample("aten.stack", ([floats(), floats()],))
    yield Sample("aten.unbind.int", (floats(7, 3), 1))
    yield Sample("aten.unbind.int", (floats(3, 7),))


def slices() -> Iterator[Sample]:
    # (size, start, end, step): of a unit, of none, from the end, all of it, beyond the end, nothing, with a step
    for n, start, end, step in (
        (12, 4, 8, 1),
        (14, 7, 14, 1),
        (7, 1, 3, 1),
        (7, -3, None, 1),
        (6, 0, 9223372036854775807, 1),
        (6, 3, 3, 1),
        (7, 1, 6, 2),
        (6, 0, 6, 2),
    ):
        length = len(range(n)[start:end:step])
        last = n if end is None else end
        yield Sample("aten.slice.Tensor", (floats(4, n), 1, start, end, step))
        yield Sample("aten.slice_backward", (floats(length, 4), [n, 4], 0, start, last, step))
        yield Sample("aten.slice_scatter", (floats(4, n), floats(4, length), -1, start, end, step))
    yield Sample("aten.constant_pad_nd", (floats(7, 4), [1, 2]))
    yield Sample("aten.constant_pad_nd", (floats(7, 4), [0, 0, 2, -1], 0.5))
    for dim, index in ((0, 2), (1, -1)):
        yield Sample("aten.select.int", (floats(7, 4), dim, index))
        yield Sample("aten.select_backward", (floats(*((4,) if dim == 0 else (7,))), [7, 4], dim, index))
        yield Sample("aten.select_scatter", (floats(7, 4), floats(*((4,) if dim == 0 else (7,))), dim, index))
    yield Sample("aten.select.int", (ints(7), 0, 6))


def windows() -> Iterator[Sample]:
    for dim in (0, -1):
        yield Sample("aten.unfold", (floats(7, 6), dim, 3, 1))
    yield Sample("aten.unfold", (floats(), 0, 1, 1))
    yield Sample("aten.unfold_backward", (floats(5, 6, 3), [7, 6], 0, 3, 1))
    yield Sample("aten.unfold_backward", (floats(1), [], 0, 1, 1))
    yield Sample("aten.unfold_backward", (floats(7, 4, 3), [7, 6], 1, 3, 1))
    for name in ("diagonal", "diagonal_copy"):
        yield Sample(f"aten.{name}", (floats(7, 4),))
        yield Sample(f"aten.{name}", (floats(4, 3, 7), 1, 0, -1))
    yield Sample("aten.diagonal_backward", (floats(4), [7, 4], 0, 0, 1))
    yield Sample("aten.diagonal_backward", (floats(3, 4), [4, 3, 7], 1, 0, 2))
    yield Sample("aten.diagonal_scatter", (floats(7, 4), floats(4), 0, 0, 1))
    yield Sample("aten.trace", (floats(7, 4),))


def samples() -> Iterator[Sample]:
    for family in (regrouped, moved, cuts, slices, windows):
        yield from family()
