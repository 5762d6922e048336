"""GPT on simulated meshes: every placement gives the numbers of one device, with the collectives that it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from lockstep_training import DATA_PARALLEL, Batches, Placements, count_collectives, train_both
from models import GPT, batch
from samite import Shard

PROJECTIONS = tuple(f"attention.{name}" for name in "qkv")
SEQUENCE_SPLIT: Placements = {"inputs": {"sp": Shard(1)}, "targets": {"sp": Shard(1)}}
FULLY_SHARDED: Placements = {**DATA_PARALLEL, "model.*": {"dp": Shard(0)}}
VOCABULARY_SPLIT: Placements = {"model.tokens.weight": {"tp": Shard(0)}, "model.head.weight": {"tp": Shard(0)}}


def tensor_parallel(*attention: str, rows: bool = False, biases: bool = True) -> Placements:
    """Megatron's split: the columns of the first linear of each pair; with `rows` also the rows of the second, which
    otherwise follow."""
    split = {f"{name}.weight": Shard(0) for name in (*attention, "up")}
    if biases:
        split |= {f"{name}.bias": Shard(0) for name in (*attention, "up")}
    if rows:
        split |= {"attention.proj.weight": Shard(1), "down.weight": Shard(1)}
    return {f"model.blocks.*.{name}": {"tp": placement} for name, placement in split.items()}


COLUMNS = tensor_parallel("attention.qkv")
WEIGHTS_ALONE = tensor_parallel("attention.qkv", biases=False)
BOTH = tensor_parallel("attention.qkv", rows=True)
SEPARATE, SEPARATE_BOTH = tensor_parallel(*PROJECTIONS), tensor_parallel(*PROJECTIONS, rows=True)


def tokens(size: int, block: int = 8) -> Batches:
    return lambda step: batch(32, size, block, seed=step)


@pytest.mark.parametrize("size, parts", [(4, 2), (6, 3), (4, 4), (5, 2), (3, 4)])
def test_data_parallel(size: int, parts: int) -> None:
    """Uneven and empty shards too: five sequences over two ranks, three over four."""
    train_both(GPT(layers=1), tokens(size), {"dp": parts}, DATA_PARALLEL)


@pytest.mark.parametrize(
    "placements, parts",
    [(COLUMNS, 2), (WEIGHTS_ALONE, 2), (BOTH, 2), (COLUMNS, 4)],
    ids=["columns", "weights", "both", "columns over 4"],
)
def test_tensor_parallel(placements: Placements, parts: int) -> None:
    train_both(GPT(layers=1), tokens(2), {"tp": parts}, placements)


@pytest.mark.parametrize("placements", [SEPARATE, SEPARATE_BOTH], ids=["columns", "both"])
def test_tensor_parallel_with_separate_projections(placements: Placements) -> None:
    train_both(GPT(layers=1, fused_qkv=False), tokens(2), {"tp": 2}, placements)


@pytest.mark.parametrize("size", [4, 5])
def test_data_and_tensor_parallel(size: int) -> None:
    train_both(GPT(layers=1), tokens(size), {"dp": 2, "tp": 2}, {**DATA_PARALLEL, **COLUMNS})


@pytest.mark.parametrize("parts", [2, 3])
def test_fully_sharded(parts: int) -> None:
    """Parameters, their gradients and momenta hold one part a rank; over three ranks all are uneven."""
    train_both(GPT(layers=1), tokens(parts), {"dp": parts}, FULLY_SHARDED)


def test_fully_sharded_and_tensor_parallel() -> None:
    train_both(GPT(layers=1), tokens(4), {"dp": 2, "tp": 2}, {**FULLY_SHARDED, **BOTH})


@pytest.mark.parametrize("block", [8, 7])
def test_sequence_split(block: int) -> None:
    train_both(GPT(layers=1), tokens(2, block), {"sp": 2}, SEQUENCE_SPLIT)


def test_batch_and_sequence_split() -> None:
    both = {name: {"dp": Shard(0), "sp": Shard(1)} for name in ("inputs", "targets")}
    train_both(GPT(layers=1), tokens(2), {"dp": 2, "sp": 2}, both)


@pytest.mark.parametrize("parts", [2, 3])
def test_vocabulary_split(parts: int) -> None:
    """The embedding owes rows that are elsewhere; the loss is a cross-entropy whose classes are split."""
    train_both(GPT(layers=1), tokens(2), {"tp": parts}, VOCABULARY_SPLIT)


@pytest.mark.parametrize(
    "axes, placements",
    [
        ({"dp": 2}, DATA_PARALLEL),
        ({"tp": 2}, {"model.tokens.weight": {"tp": Shard(0)}}),
        ({"dp": 2, "tp": 2}, {**DATA_PARALLEL, **BOTH, "model.tokens.weight": {"tp": Shard(0)}}),
    ],
    ids=["dp", "vocabulary", "dp-tp-vocabulary"],
)
def test_tied_embeddings(axes: dict[str, int], placements: Placements) -> None:
    train_both(GPT(layers=1, tie=True), tokens(2), axes, placements)


def test_adamw() -> None:
    """In float64: Adam divides a gradient by its own size, so that what is zero in exact arithmetic becomes a step of
    the size of the learning rate unless its rounding noise is far below epsilon. No closer than 1e-5, because the count
    of steps is a float32, as in all of torch, and here so is what follows from it (1 - beta ** step)."""
    placements = {**DATA_PARALLEL, **BOTH}
    train_both(GPT(layers=1).double(), tokens(4), {"dp": 2, "tp": 2}, placements, optimizer=adamw)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def test_the_step_that_creates_state() -> None:
    """Without gradients or momenta at first: another program, once."""
    train_both(GPT(layers=1), tokens(4), {"dp": 2}, DATA_PARALLEL, warm=False)


# ---- collectives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placements, fused, parts",
    [
        (COLUMNS, True, 2),
        (WEIGHTS_ALONE, True, 4),
        (BOTH, True, 2),
        (BOTH, True, 4),
        (SEPARATE, False, 2),
        (SEPARATE_BOTH, False, 4),
    ],
    ids=["columns", "weights over 4", "both", "both over 4", "separate", "separate, both, over 4"],
)
def test_tensor_parallel_is_megatrons(placements: Placements, fused: bool, parts: int) -> None:
    """Four all-reduces a layer, forward and backward, and nothing else."""
    for layers in (1, 3):
        found = count_collectives(GPT(layers=layers, fused_qkv=fused), tokens(4, 16), {"tp": parts}, placements)
        assert found == {("all_reduce", "tp"): 4 * layers}


def test_data_parallel_reduces_every_parameter_once() -> None:
    """And the loss with the number of tokens it is the mean over. All of it meets in one bucket but that number,
    which the backward pass begins with."""
    model = GPT(layers=2)
    reductions = len(list(model.parameters())) + 2
    assert count_collectives(model, tokens(4), {"dp": 2}, DATA_PARALLEL, "fuse_collectives") == Counter(
        {("all_reduce", "dp"): reductions}
    )
    assert count_collectives(model, tokens(4), {"dp": 2}, DATA_PARALLEL) == Counter({("all_reduce", "dp"): 2})


def test_data_and_tensor_parallel_do_not_mix() -> None:
    found = count_collectives(GPT(layers=2), tokens(8, 16), {"dp": 2, "tp": 2}, {**DATA_PARALLEL, **BOTH})
    assert found == {("all_reduce", "dp"): 2, ("all_reduce", "tp"): 8}
