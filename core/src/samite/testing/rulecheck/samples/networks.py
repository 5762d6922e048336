"""Samples of the larger ops of networks: normalisation, convolution, pooling, attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.rules.tables.resampling import SEPARABLE, WIDER
from samite.testing.rulecheck.sample import Fill, Sample, bools, distinct, floats, ints

__all__ = ["samples"]


def normalised() -> Iterator[Sample]:
    for batch, dims in (((7,), (4,)), ((3, 2), (6,)), ((7,), (2, 3)), ((), (4,))):
        x, ones = floats(*batch, *dims), (1,) * len(dims)
        for weight, bias in ((floats(*dims), floats(*dims)), (None, None), (floats(*dims), None)):
            yield Sample("aten.native_layer_norm", (x, list(dims), weight, bias, 1e-5))
            mean, rstd = floats(*batch, *ones), floats(*batch, *ones, low=0.5)
            mask = [True, weight is not None, bias is not None]
            arguments = (floats(*batch, *dims), x, list(dims), mean, rstd, weight, bias, mask)
            yield Sample("aten.native_layer_norm_backward", arguments)
    half = floats(7, 6, dtype=torch.bfloat16)
    yield Sample("aten.native_layer_norm", (half, [6], floats(6, dtype=torch.bfloat16), None, 1e-5))


class Windowed(Fill):
    """Indices into planes of twice the size: each into the square that it stands for."""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        index = torch.zeros(self.shape, dtype=torch.int64)
        spatial = len(self.shape) - int(self.low)
        for i, n in enumerate(self.shape[-spatial:]):
            place = 2 * torch.arange(n) + torch.randint(0, 2, (n,), generator=generator)
            index = index * 2 * n + place.view([-1] + [1] * (spatial - 1 - i))
        return index


def convolved() -> Iterator[Sample]:
    # (groups, channels in, channels out, spatial dims, kernel, stride, padding, dilation, transposed)
    for groups, c, o, spatial, k, stride, padding, dilation, transposed in (
        (1, 6, 4, (5, 5), 3, 1, 1, 1, False),
        (1, 3, 7, (5,), 3, 2, 1, 1, False),
        (2, 6, 4, (4, 4), 3, 1, 1, 1, False),
        (6, 6, 6, (4, 3), 3, 1, 1, 1, False),
        (1, 4, 6, (3,), 3, 2, 1, 1, True),
        (3, 6, 3, (3,), 3, 1, 1, 1, True),
        (1, 3, 4, (12,), 7, 2, 3, 1, False),
        (1, 2, 3, (7,), 2, 3, 0, 2, False),
        (1, 3, 2, (4,), 2, 2, 0, 1, True),
        (1, 2, 3, (5,), 3, 3, 2, 2, True),
    ):
        n, d, reach = 3, len(spatial), dilation * (k - 1)
        kernel = (c, o // groups, *[k] * d) if transposed else (o, c // groups, *[k] * d)
        geometry = ([stride] * d, [padding] * d, [dilation] * d, transposed, [0] * d, groups)
        x, weight = floats(n, c, *spatial), floats(*kernel)
        after = [
            (s - 1) * stride - 2 * padding + reach + 1 if transposed else (s + 2 * padding - reach - 1) // stride + 1
            for s in spatial
        ]
        for bias in (floats(o), None):
            yield Sample("aten.convolution", (x, weight, bias, *geometry))
        for mask in ([True, True, True], [True, True, False], [False, True, False], [True, False, False]):
            bias_sizes = [o] if mask[2] else None
            yield Sample("aten.convolution_backward", (floats(n, o, *after), x, weight, bias_sizes, *geometry, mask))


def pooled() -> Iterator[Sample]:
    for batch in ((3, 4), (7,)):
        for spatial, name in (((4, 6), "2d"), ((4, 2, 2), "3d")):
            d = len(spatial)
            half = [n // 2 for n in spatial]
            x, grad, geometry = distinct(*batch, *spatial), floats(*batch, *half), ([2] * d, [2] * d)
            elements = 1
            for n in spatial:
                elements *= n
            yield Sample(f"aten.max_pool{name}_with_indices", (x, *geometry))
            yield Sample(
                f"aten.max_pool{name}_with_indices_backward",
                (grad, x, *geometry, [0] * d, [1] * d, False, Windowed((*batch, *half), torch.int64, low=len(batch))),
                trusting=True,
            )
            indices = ints(*batch, *half, low=0, high=elements - 1)
            yield Sample(f"aten.adaptive_max_pool{name}", (x, half))
            yield Sample(f"aten.adaptive_max_pool{name}_backward", (grad, x, indices), trusting=True)
            yield Sample(f"aten.avg_pool{name}", (x, *geometry))
            yield Sample(f"aten.avg_pool{name}_backward", (grad, x, *geometry, [0] * d, False, True, None))
            overlapping = ([3] * d, [2] * d, [1] * d)
            yield Sample(f"aten.max_pool{name}_with_indices", (x, *overlapping, [1] * d, True))
            for whole, divisor in ((True, None), (False, None), (True, 2)) if d == 2 else ():
                after = [n // 2 + 1 for n in spatial]  # with ceil_mode
                yield Sample(f"aten.avg_pool{name}", (x, *overlapping, True, whole, divisor))
                arguments = (floats(*batch, *after), x, *overlapping, True, whole, divisor)
                yield Sample(f"aten.avg_pool{name}_backward", arguments)
            yield Sample(f"aten._adaptive_avg_pool{name}", (x, [1] * d))
            yield Sample(f"aten._adaptive_avg_pool{name}_backward", (floats(*batch, *[1] * d), x))
    for d in (1, 2, 3):
        x, grad = floats(7, 3, *[3] * d), floats(7, 3, *[5] * d)
        for kind in ("reflection", "replication"):
            yield Sample(f"aten.{kind}_pad{d}d", (x, [1, 1] * d))
            yield Sample(f"aten.{kind}_pad{d}d_backward", (grad, x, [1, 1] * d))
    yield Sample("aten.pixel_shuffle", (floats(7, 4, 2, 3), 2))
    yield Sample("aten.pixel_unshuffle", (floats(7, 1, 4, 2), 2))
    for d in (2, 3):
        before, after = [5] * d, [2] * d
        x, places = distinct(3, 4, *before), floats(3, 4, d, low=0.0, high=0.99)
        yield Sample(f"aten.fractional_max_pool{d}d", (x, [2] * d, after, places), gradient=False)
        indices = ints(3, 4, *after, low=0, high=5**d - 1)
        arguments = (floats(3, 4, *after), x, [2] * d, after, indices)
        yield Sample(f"aten.fractional_max_pool{d}d_backward", arguments, trusting=True)
    for batch in ((3,), ()):
        geometry = ([2, 2], [1, 1], [0, 0], [2, 2])
        yield Sample("aten.im2col", (floats(*batch, 4, 4, 6), *geometry))
        yield Sample("aten.col2im", (floats(*batch, 16, 6), [4, 6], *geometry))


def resized() -> Iterator[Sample]:
    names = [(d, name) for names in SEPARABLE.values() for d, name in names.items()] + [(2, name) for name in WIDER]
    for d, name in names:
        for before, after in (
            ([3, 2, 2][:d], [5, 4, 3][:d]),
            ([7, 2, 2][:d], [14, 4, 4][:d]),
            ([7, 4, 3][:d], [3] * d),
        ):
            for corners in ((),) if "nearest" in name else ((False,), (True,)):
                yield Sample(f"aten.{name}", (floats(2, 3, *before), after, *corners))
                yield Sample(f"aten.{name}_backward", (floats(2, 3, *after), after, [2, 3, *before], *corners))
    for d in (2, 3):
        image, after = floats(3, 4, *[4] * d), [3, 2, 2][:d]
        grid = floats(3, *after, d, low=-1.2, high=1.2)
        for padding in (0, 1):
            yield Sample(f"aten.grid_sampler_{d}d", (image, grid, 0, padding, False))
            arguments = (floats(3, 4, *after), image, grid, 0, padding, False, [True, True])
            yield Sample(f"aten.grid_sampler_{d}d_backward", arguments)


def attended() -> Iterator[Sample]:
    """One head a group and several, with and without masks, causal or not, other numbers of keys."""
    for batch, h, g, s, t in (((3,), 4, 4, 4, 4), ((2,), 6, 2, 3, 5), ((), 4, 2, 2, 2), ((2, 2), 2, 1, 3, 3)):
        q, k, v = floats(*batch, h, s, 4), floats(*batch, g, t, 4), floats(*batch, g, t, 2)
        masks = (None, bools(s, t), floats(*batch, h, s, t), floats(*[1] * len(batch), 1, 1, t))
        for mask in masks:
            for causal in (False, True) if mask is None else (False,):
                options = (causal, 0.5, h != g)
                yield Sample("samite.sdpa", (q, k, v, mask, *options))
                grad, out, total = floats(*batch, h, s, 2), floats(*batch, h, s, 2), floats(*batch, h, s, low=1.0)
                yield Sample("samite.sdpa_backward", (grad, q, k, v, mask, out, total, *options))
    cpu = "aten._scaled_dot_product_flash_attention_for_cpu"
    for mask in (None, floats(3, 4, 3, 5), floats(1, 1, 1, 5)):
        for causal in (False, True) if mask is None else (False,):
            q, k, v, options = floats(3, 4, 3, 2), floats(3, 4, 5, 2), floats(3, 4, 5, 2), {"attn_mask": mask}
            yield Sample(cpu, (q, k, v, 0.0, causal), options, gradient=mask is None)
            yield Sample(f"{cpu}_backward", (q, q, k, v, q, floats(3, 4, 3, low=1.0), 0.0, causal), options)


def aligned() -> Iterator[Sample]:
    """CTC, for targets in rows and in one row."""
    for n, targets in ((7, (7, 2)), (4, (4, 2)), (3, (6,))):
        lengths = ints(n, low=4, high=6), ints(n, low=2 if len(targets) == 1 else 0, high=2)
        given = floats(6, n, 3), ints(*targets, low=1, high=2), *lengths
        yield Sample("samite.ctc_loss", (*given, 0, False))
        yield Sample("samite.ctc_loss", (*given, 2, True), gradient=False)
        more = floats(n), floats(n, 6, 2 * targets[-1] + 1)
        yield Sample("samite.ctc_loss_backward", (floats(n), *given, *more, 0, False), trusting=True)


def samples() -> Iterator[Sample]:
    for family in (normalised, convolved, pooled, resized, attended, aligned):
        yield from family()
