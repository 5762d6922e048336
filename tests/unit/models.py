"""Small ordinary PyTorch models that the tests train. Nothing in this file knows of Samite.

Each model gives the loss when called with inputs and targets, and the logits when called with inputs alone.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CNN", "GPT", "MLP", "Llama", "RMSNorm", "batch", "images"]


def batch(vocab: int, size: int, block: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens and the tokens that follow them, both int64 of shape (size, block)."""
    text = torch.randint(0, vocab, (size, block + 1), generator=torch.Generator().manual_seed(seed))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def images(size: int, channels: int, side: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images (size, channels, side, side) and their labels (size,)."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(size, channels, side, side, generator=generator)
    return pixels, torch.randint(0, classes, (size,), generator=generator)


def _language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100)


class Attention(nn.Module):
    """Causal self-attention; `fused_qkv` makes one projection for q, k and v instead of three."""

    def __init__(self, dim: int, heads: int, fused_qkv: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.fused_qkv, self.dropout = heads, fused_qkv, dropout
        if fused_qkv:
            self.qkv = nn.Linear(dim, 3 * dim)
        else:
            self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        size, time, dim = x.shape
        q, k, v = self.qkv(x).split(dim, dim=2) if self.fused_qkv else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.view(size, time, self.heads, dim // self.heads).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(size, time, dim))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, fused_qkv: bool, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads, fused_qkv, dropout)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    """A GPT-2-like decoder. `tie` shares the token embedding with the output head."""

    def __init__(
        self,
        vocab: int = 32,
        block: int = 16,
        dim: int = 32,
        heads: int = 4,
        layers: int = 2,
        fused_qkv: bool = True,
        dropout: float = 0.0,
        tie: bool = False,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(dim, heads, fused_qkv, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        if tie:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else _language_loss(logits, targets)


class RMSNorm(nn.Module):
    """RMSNorm written out, in float32, as Llama's reference code has it."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.norm1, self.norm2 = RMSNorm(dim), nn.RMSNorm(dim, eps=1e-5)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size, time, dim = x.shape
        q = self.q(x).view(size, time, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(size, time, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(size, time, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.proj(y.transpose(1, 2).reshape(size, time, dim))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding over the two halves of the last dim."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Llama(nn.Module):
    """A Llama-like decoder: RMSNorm, rotary positions held in buffers, grouped queries, SwiGLU."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, vocab: int = 32, block: int = 16, dim: int = 32, heads: int = 4, layers: int = 2, kv_heads: int = 2
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([LlamaBlock(dim, heads, kv_heads, 2 * dim) for _ in range(layers)])
        self.norm, self.head = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        half = dim // heads // 2
        angles = torch.outer(torch.arange(block).float(), 10000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x, time = self.tokens(tokens), tokens.size(1)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        logits = self.head(self.norm(x))
        return logits if targets is None else _language_loss(logits, targets)


class MLP(nn.Module):
    def __init__(self, inputs: int = 16, hidden: int = 32, classes: int = 8, layers: int = 2) -> None:
        super().__init__()
        sizes = [inputs, *[hidden] * layers]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        logits = self.head(x)
        return logits if labels is None else F.cross_entropy(logits, labels)


class CNN(nn.Module):
    """Two convolutions with batch norm, max and average pooling, and a linear head, for square images."""

    def __init__(self, channels: int = 3, width: int = 8, classes: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.bn2(self.conv2(x))), 1).flatten(1)
        logits = self.head(x)
        return logits if labels is None else F.cross_entropy(logits, labels)
