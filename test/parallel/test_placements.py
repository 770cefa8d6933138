"""Layouts as DTensor's placements: what a rank holds is the same in both."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)

from distir.errors import DistIRError
from distir.parallel.placements import placements

AXES = {"d": 2, "t": 2}


def test_plain_splits() -> None:
    assert placements((8, 6), (), AXES) == [Replicate(), Replicate()]
    assert placements((8, 6), ((("t", None),), ()), AXES) == [Replicate(), Shard(0)]
    assert placements((8, 6), ((("d", None),), (("t", None),)), AXES) == [
        Shard(0),
        Shard(1),
    ]
    both = ((("d", None), ("t", None)),)
    assert placements((8,), both, AXES) == [Shard(0), Shard(0)]


def test_an_axis_inside_a_later_one_is_strided() -> None:
    inside = ((("t", None), ("d", None)),)
    assert placements((8,), inside, AXES) == [
        _StridedShard(0, split_factor=2),
        Shard(0),
    ]


def test_runs_are_strided() -> None:
    # q, k and v of 8 columns each, of which each device has a half: runs of 4.
    assert placements((24,), ((("t", 4),),), AXES) == [
        Replicate(),
        _StridedShard(0, split_factor=3),
    ]


def test_what_placements_cannot_say_is_refused() -> None:
    # Half of three runs: one and a half, which no step of DTensor takes.
    with pytest.raises(DistIRError, match="no placement for a dimension of 24"):
        placements((24,), ((("t", 4), ("d", None)),), AXES)
