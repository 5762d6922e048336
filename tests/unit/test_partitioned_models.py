"""Llama, a perceptron and a small CNN on simulated meshes: every placement gives the numbers of one device."""

from __future__ import annotations

import pytest
import torch

from lockstep_training import DATA_PARALLEL, Batches, Placements, count_collectives, train_both
from models import CNN, MLP, Llama, batch, images
from samite import Shard

FULLY_SHARDED: Placements = {**DATA_PARALLEL, "model.*": {"dp": Shard(0)}}


def over_tp(**dims: int) -> Placements:
    """Weights by the end of their names, each split at a dim; "_" stands for the dot."""
    return {f"model.*{name.replace('_', '.')}": {"tp": Shard(dim)} for name, dim in dims.items()}


def tokens(size: int, block: int = 8) -> Batches:
    return lambda step: batch(32, size, block, seed=step)


def vectors(size: int) -> Batches:
    def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(size, 16, generator=generator), torch.randint(0, 8, (size,), generator=generator)

    return draw


def pictures(size: int) -> Batches:
    def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, labels = images(size, 3, 8, 8, seed=step)
        return pixels.double(), labels

    return draw


# ---- Llama: RMSNorm, rotary positions in buffers, grouped queries, SwiGLU, no biases ---------------------------------

COLUMNS = over_tp(q_weight=0, k_weight=0, v_weight=0, gate_weight=0, up_weight=0)
BOTH: Placements = {**COLUMNS, **over_tp(proj_weight=1, down_weight=1)}


@pytest.mark.parametrize(
    "axes, placements, size",
    [
        ({"dp": 2}, DATA_PARALLEL, 4),
        ({"dp": 2}, FULLY_SHARDED, 3),
        ({"tp": 2}, COLUMNS, 2),
        ({"tp": 4}, BOTH, 2),
        ({"dp": 2, "tp": 2}, {**DATA_PARALLEL, **BOTH}, 5),
        ({"sp": 2}, {"inputs": {"sp": Shard(1)}, "targets": {"sp": Shard(1)}}, 2),
    ],
    ids=["dp", "fully sharded, uneven", "columns", "more ranks than key heads", "dp-tp, uneven", "sequence"],
)
def test_llama(axes: dict[str, int], placements: Placements, size: int) -> None:
    train_both(Llama(layers=1), tokens(size), axes, placements)


@pytest.mark.parametrize("placements", [COLUMNS, BOTH], ids=["columns", "both"])
def test_llama_tensor_parallel_is_megatrons(placements: Placements) -> None:
    for layers in (1, 2):
        found = count_collectives(Llama(layers=layers), tokens(4, 16), {"tp": 2}, placements)
        assert found == {("all_reduce", "tp"): 4 * layers}


# ---- a perceptron ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axes, placements, size",
    [
        ({"dp": 2}, DATA_PARALLEL, 8),
        ({"dp": 3}, DATA_PARALLEL, 5),
        ({"dp": 4}, DATA_PARALLEL, 3),
        ({"dp": 3}, FULLY_SHARDED, 6),
        ({"tp": 2}, over_tp(layers_0_weight=0), 8),
        ({"tp": 4}, over_tp(layers_0_weight=1), 8),
        ({"tp": 3}, over_tp(layers_0_weight=0, layers_1_weight=1), 8),
        ({"tp": 3}, over_tp(head_weight=0), 8),
        ({"dp": 2, "tp": 2}, {**DATA_PARALLEL, **over_tp(layers_0_weight=0, head_weight=0)}, 7),
        ({"tp": 2}, {"inputs": {"tp": Shard(1)}}, 8),
    ],
    ids=[
        "dp",
        "dp, uneven",
        "dp, an empty rank",
        "fully sharded, uneven",
        "columns",
        "rows",
        "columns and rows, uneven",
        "classes, uneven",
        "dp-tp",
        "features",
    ],
)
def test_mlp(axes: dict[str, int], placements: Placements, size: int) -> None:
    train_both(MLP(), vectors(size), axes, placements)


def test_nothing_placed_is_everywhere() -> None:
    assert not count_collectives(MLP(), vectors(4), {"dp": 2, "tp": 2}, {})


# ---- a CNN: batch statistics are those of the whole batch -----------------------------------------------------------


@pytest.mark.parametrize(
    "axes, placements, size",
    [
        ({"dp": 2}, DATA_PARALLEL, 4),
        ({"dp": 2}, DATA_PARALLEL, 5),
        ({"dp": 4}, DATA_PARALLEL, 3),
        ({"dp": 2}, {**DATA_PARALLEL, "model.*.weight": {"dp": Shard(0)}}, 4),
        ({"tp": 2}, over_tp(conv1_weight=0), 4),
        ({"tp": 2}, over_tp(conv1_weight=0, conv2_weight=1), 4),
        ({"dp": 2, "tp": 2}, {**DATA_PARALLEL, **over_tp(conv1_weight=0, conv2_weight=1)}, 4),
    ],
    ids=["dp", "dp, uneven", "dp, an empty rank", "weights sharded", "channels", "channels in and out", "dp-tp"],
)
def test_cnn(axes: dict[str, int], placements: Placements, size: int) -> None:
    """In float64: the gradient of a bias before a batch norm is zero, as a sum of many terms that cancel."""
    train_both(CNN().double(), pictures(size), axes, placements, tolerance=1e-9)
