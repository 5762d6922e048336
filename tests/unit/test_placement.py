from __future__ import annotations

import pytest
import torch.distributed.tensor as dt

from samite.errors import PlacementError
from samite.placement import Partial, Placement, Replicate, Shard, as_placement


@pytest.mark.parametrize("placement", [Shard(0), Shard(-1), Replicate(), Partial(), Partial("max")])
def test_ours_are_taken_as_they_are(placement: Placement) -> None:
    assert as_placement(placement) is placement
    assert {placement: 1}[placement] == 1


@pytest.mark.parametrize(
    "theirs, ours",
    [
        (dt.Shard(1), Shard(1)),
        (dt.Replicate(), Replicate()),
        (dt.Partial(), Partial("sum")),
        (dt.Partial("min"), Partial("min")),
        (dt.Partial("product"), Partial("prod")),
    ],
)
def test_torch_s_are_taken(theirs: dt.Placement, ours: Placement) -> None:
    assert as_placement(theirs) == ours


def test_averages_are_refused() -> None:
    for make in (lambda: Partial("avg"), lambda: as_placement(dt.Partial("avg"))):
        with pytest.raises(PlacementError, match="avg") as error:
            make()
        assert "a sum and a scale" in error.value.help


def test_unknown_reductions_are_refused() -> None:
    with pytest.raises(PlacementError, match='no reduction "mx"') as error:
        Partial("mx")
    assert "max" in error.value.help


@pytest.mark.parametrize("obj", [0, None, "dp", Shard, (Shard(0),)])
def test_what_is_no_placement_is_refused(obj: object) -> None:
    with pytest.raises(PlacementError, match="is not a placement"):
        as_placement(obj)


def test_torch_s_strided_shards_are_refused() -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    with pytest.raises(PlacementError, match="is not a placement"):
        as_placement(_StridedShard(0, split_factor=2))
