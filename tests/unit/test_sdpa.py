"""`samite::sdpa` and its backward: exact, contiguous, and the same on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from captures import Replay, check_steps
from samite.errors import InputError
from samite.ir.sdpa import sdpa, sdpa_backward, sdpa_reference

SHAPES = st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 6), st.integers(1, 6), st.sampled_from([4, 8]))


def heads(batch: int, groups: int, repeats: int, s: int, t: int, e: int, dtype: torch.dtype) -> list[Tensor]:
    shapes = ((batch, groups * repeats, s, e), (batch, groups, t, e), (batch, groups, t, e))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def gradients(fn: Any, inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(fn(*leaves), leaves, grad)


@settings(max_examples=40)
@given(SHAPES, st.integers(1, 3), st.booleans(), st.sampled_from(["none", "bool", "float", "rows"]), st.booleans())
def test_forward_and_gradient(
    shape: tuple[int, ...], repeats: int, causal: bool, mask: str, kernel_order: bool
) -> None:
    """Against PyTorch's own; in layouts of the model (heads transposed) too."""
    batch, groups, s, t, e = shape
    inputs = heads(batch, groups, repeats, s, t, e, torch.float64)
    if kernel_order:
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    masks = {"none": None, "bool": torch.rand(s, t) > 0.3, "float": torch.randn(batch, 1, s, t).double(),
             "rows": torch.rand(batch, 1, 1, t) > 0.3}  # fmt: skip
    attn_mask = None if causal else masks[mask]
    gqa = repeats > 1
    grad = torch.randn_like(inputs[0])

    def wanted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=causal, scale=0.3, enable_gqa=gqa)

    def got(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask, causal, 0.3, gqa)[0]

    with sdpa_kernel(SDPBackend.MATH):
        expected, expected_grads = wanted(*inputs), gradients(wanted, inputs, grad)
    torch.testing.assert_close(got(*inputs), expected)
    for a, b in zip(gradients(got, inputs, grad), expected_grads, strict=True):
        torch.testing.assert_close(a, b)
        assert a.is_contiguous()
    reference, logsumexp = sdpa_reference(*inputs, attn_mask, causal, 0.3, gqa)
    torch.testing.assert_close(reference, expected)
    torch.testing.assert_close(sdpa(*inputs, attn_mask, causal, 0.3, gqa)[1], logsumexp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_kernels_match_the_definition(dtype: torch.dtype, rank: int) -> None:
    q, k, v = (torch.randn(*(2,) * (rank - 2), 6, 8, dtype=dtype) for _ in range(3))
    out, logsumexp = sdpa(q, k, v, None, True, 0.5, False)
    expected, expected_logsumexp = sdpa_reference(q, k, v, None, True, 0.5, False)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(logsumexp, expected_logsumexp, **tolerance)
    assert out.dtype == dtype
    assert logsumexp.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("gqa", [False, True])
@pytest.mark.parametrize("value_dim", [8, 5])
def test_fakes_have_the_strides_of_the_results(gqa: bool, value_dim: int) -> None:
    q, k = torch.randn(2, 6, 4, 8).transpose(1, 2), torch.randn(2, 6, 2 if gqa else 4, 8).transpose(1, 2)
    v = torch.randn(2, k.shape[1], 6, value_dim)
    real = sdpa(q, k, v, None, True, 0.5, gqa)
    real += sdpa_backward(torch.ones_like(real[0]), q, k, v, None, *real, True, 0.5, gqa)
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(x) for x in (q, k, v))
        fake = sdpa(q, k, v, None, True, 0.5, gqa)
        fake += sdpa_backward(torch.ones_like(fake[0]), q, k, v, None, *fake, True, 0.5, gqa)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_op_registration() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    torch.library.opcheck(sdpa, (q, k, v, None, True, 0.5, False))


def test_rows_without_a_key() -> None:
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[True, True, True], [False, False, False], [False, True, False]])
    for head_dim in (4, 3):  # the kernel, and the definition
        out, logsumexp = sdpa(q, k, v[..., :head_dim], mask, False, 0.5, False)
        assert torch.equal(out[0, 0, 1], torch.zeros(head_dim))
        assert logsumexp[0, 0, 1] == 0
        assert torch.isfinite(out).all()


def test_wrong_shapes() -> None:
    with FakeTensorMode():
        q, k, v = torch.empty(1, 4, 3, 8), torch.empty(1, 2, 3, 8), torch.empty(1, 2, 3, 8)
        with pytest.raises(RuntimeError, match="4 query heads over 2 key heads need enable_gqa"):
            sdpa(q, k, v, None, True, 0.5, False)
        with pytest.raises(RuntimeError, match="q has head dim 8, k has 4"):
            sdpa(q, k[..., :4], v, None, True, 0.5, True)
        with pytest.raises(RuntimeError, match="do not match"):
            sdpa(q, k, v[:, :, :2], None, True, 0.5, True)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any]) -> tuple[Tensor | None, ...]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    if mask is not None and options.pop("learned", False):
        mask = mask.detach().requires_grad_()
        leaves.append(mask)
    out = F.scaled_dot_product_attention(*leaves[:3], mask, **options)
    out.square().sum().backward()
    return out, *(x.grad for x in leaves)


@pytest.mark.parametrize("options", [
    {"is_causal": True}, {}, {"scale": 0.1}, {"dropout_p": 0.4}, {"dropout_p": 0.4, "is_causal": True},
    {"mask": torch.rand(2, 1, 5, 6) > 0.2}, {"mask": torch.randn(5, 6)}, {"mask": torch.randn(5, 6), "learned": True},
    {"enable_gqa": True, "is_causal": True}, {"enable_gqa": True, "dropout_p": 0.4},
], ids=lambda o: ",".join(o))  # fmt: skip
def test_captured_attention(options: dict[str, Any]) -> None:
    options = dict(options)
    groups = 2 if "enable_gqa" in options else 4
    mask = options.pop("mask", None)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, groups, 6, 8), torch.randn(2, groups, 6, 8)
    replay = check_steps(lambda q, k, v, m: attend(q, k, v, m, dict(options)), (q, k, v, mask), steps=2)
    (captured,) = replay.captures.values()
    ops = {str(n.target) for n in captured.graph.graph.nodes}
    assert ("samite.sdpa.default" in ops) != ("dropout_p" in options or "learned" in options)


def test_causal_with_a_mask_is_refused_as_torch_does() -> None:
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(InputError, match="is_causal"):
        Replay(lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(3, 3).bool(), is_causal=True))(x)
