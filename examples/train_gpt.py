"""Train a character-level GPT on the source text of Python's standard library, over a mesh of four processes.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 500 --engine lockstep
    samite explain examples/train_gpt.py:train_step

The model, the optimizer and the loop are plain PyTorch. The same first steps run on one device beside it, and their
losses must agree.
"""

from __future__ import annotations

import argparse
import copy
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn import functional as F

import samite
from samite import Shard
from samite.report import console, describe, plain_table, report_as_text

VOCABULARY = 128  # ASCII; other characters become "?"
BATCH, TIME, DIM, HEADS, LAYERS = 16, 128, 128, 4, 4
TOLERANCE = 1e-4

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], Tensor]
out = console()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = (t.view(batch, time, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(DIM, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, time, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(TIME, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def source_text(limit: int = 3_000_000) -> Tensor:
    """The first `limit` characters of the standard library's modules, by name, as int64 (limit,)."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").encode("ascii", errors="replace")
    return torch.frombuffer(text[:limit], dtype=torch.uint8).long()


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The batch of one step, the same in every run: tokens and the tokens after them, int64 (BATCH, TIME)."""
    at = torch.randint(len(text) - TIME - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([text[i : i + TIME + 1] for i in at.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def train(
    title: str, step: Step, model: nn.Module, optimizer: torch.optim.Optimizer, text: Tensor, steps: int
) -> tuple[list[float], float]:
    """The loss of every step, and tokens/s of the steps after the first two, which compile."""
    losses: list[Tensor] = []
    columns = TextColumn(f"{title:32}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}")
    started = time.perf_counter()
    with Progress(*columns, TimeElapsedColumn(), console=out) as progress:
        task = progress.add_task(title, total=steps, figures="compiling")
        for number in range(steps):
            if number == 2:
                started = time.perf_counter()
            losses.append(step(model, optimizer, *batch(text, number)).detach())
            if number < 2 or number % 10 == 9 or number + 1 == steps:  # to read a loss is to wait for its step
                figures = f"loss {losses[-1].item():.3f}"
                if number > 2:
                    figures += f"  {_speed(number - 1, started):,.0f} tokens/s"
                progress.update(task, completed=number + 1, figures=figures)
        speed = _speed(steps - 2, started)
    return [loss.item() for loss in losses], speed


def _speed(steps: int, started: float) -> float:
    return steps * BATCH * TIME / (time.perf_counter() - started)


def compare(losses: list[float], expected: list[float]) -> float:
    """Prints both runs side by side; the largest difference of a loss."""
    table = plain_table("The same run on one device", "step", "mesh", "one device", "difference", right=("step",))
    for step in sorted({0, 1, *range(9, len(expected), 10), len(expected) - 1}):
        one, other = losses[step], expected[step]
        table.add_row(str(step + 1), f"{one:.6f}", f"{other:.6f}", f"{abs(one - other):.1e}")
    out.print("", table)
    return max(abs(one - other) for one, other in zip(losses, expected, strict=False))


@torch.no_grad()
def sample(model: nn.Module, prompt: str, length: int) -> str:
    """Continue a prompt up to the end of the line, or of the length."""
    generator = torch.Generator().manual_seed(0)
    tokens = list(prompt.encode("ascii"))
    while len(tokens) < length and tokens[-1] != ord("\n"):
        logits = model(torch.tensor([tokens[-TIME:]]))[0, -1]
        tokens.append(int(torch.multinomial((logits / 0.7).softmax(0), 1, generator=generator)))
    return bytes(tokens).decode("ascii").rstrip("\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a character-level GPT over a mesh of four processes.")
    parser.add_argument("--steps", type=int, default=200, help="steps on the mesh (default: %(default)s)")
    parser.add_argument("--compared", type=int, default=50, help="of them on one device too (default: %(default)s)")
    parser.add_argument("--engine", help='"local", "lockstep", ... (default: as configured)')
    options = parser.parse_args()

    text = source_text()
    out.print(f"{len(text):,} characters of the source of Python's standard library")
    torch.manual_seed(0)
    model = GPT()
    twin = copy.deepcopy(model)
    # At twice this rate the start of training is chaotic: rounding alone would drive two runs of plain PyTorch apart.
    optimizer, twin_optimizer = (torch.optim.AdamW(m.parameters(), lr=1e-3, betas=(0.9, 0.99)) for m in (model, twin))

    mesh = samite.mesh("cpu", dp=2, tp=2, engine=options.engine)
    batches = {"tokens": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}}
    weights = {"model.blocks.*.qkv.weight": {"tp": Shard(0)}, "model.blocks.*.up.weight": {"tp": Shard(0)}}
    mesh_step = samite.compile(train_step, mesh=mesh, placements=batches | weights)

    title = f"{mesh.size} ranks ({mesh.engine})"
    losses, speed = train(title, mesh_step, model, optimizer, text, options.steps)
    compared = min(options.compared, options.steps)
    expected, twin_speed = train("one device", train_step, twin, twin_optimizer, text, compared)

    _, built = mesh_step.lower(model, optimizer, *batch(text, 0))
    out.print("", report_as_text(describe(built)))
    worst = compare(losses, expected)
    out.print(f"largest difference {worst:.1e}; {speed:,.0f} tokens/s on the mesh, {twin_speed:,.0f} on one device\n")
    if not worst <= TOLERANCE:
        print(f"the losses of the mesh and of one device differ by {worst:.1e}, more than {TOLERANCE}", file=sys.stderr)
        return 1
    out.print("sample:", repr(sample(model, "    def ", 100)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
