"""Training on numbers of processes that divide no dimension of some parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.thoroughness import IS_THOROUGH
from support.training_programs import assert_close, train
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.frontends.models.llama import build_llama
from distir.launch.packages import Spawner, Training
from distir.passes.differentiate import DifferentiatePass
from distir.runtime import runtime
from distir.runtime.loop import initial
from distir.runtime.storage import boxes

MESH = runtime.MeshSpec({"d": 3, "t": 2}, [4, 5, 0, 1, 2, 3], [])
SPECS = [
    ((5, 7), (36, ()), ((("d", None),),)),
    ((5, 7), (36, ()), ()),
    ((5, 7), (36, ()), ((("d", None), ("t", None)),)),
    ((7,), (9, ()), ((("d", None),),)),
    ((1,), (3, ()), ((("d", None),),)),
    ((2, 3, 5, 1), (33, ()), ((("d", None),),)),
    ((5, 8), (21, ((1, 2, 4),)), ((("d", None),), (("t", None),))),
    ((5, 8), (21, ((1, 2, 2),)), ((("d", None),), (("t", None),))),
    ((8, 5), (21, ((0, 2, 1),)), ((("d", None),), ())),
    ((8, 2, 8), (9, ((0, 4, 2), (2, 4, 1))), ((("d", None),), (("t", None),), ())),
    ((5, 7), (36, ((0, 2, 3),)), ((("d", None),), (("t", None),)), (6, 7)),
    ((5, 7), (), ((("t", None),), ()), (6, 7)),
    ((5, 7), (), ((("t", 2),), (("d", None),)), (8, 9)),
    ((5,), (), ((("t", None), ("d", None)),), (18,)),
    ((4, 7), (), ((("t", 1),), ()), (6, 7), (0, ((2, 1), (2, 1)))),
    (
        (4, 7),
        (48, ((0, 2, 1),)),
        ((("d", None),), (("t", None),)),
        (6, 8),
        (0, ((2, 1), (2, 1))),
    ),
]
"""
The shape of a tensor, its length and blocks when it is flat, how that is split, and the shape
that zeros fill it up to before, in some cases between elements of a dimension too.
"""


def flat(
    shape: tuple[int, ...],
    flattened: tuple[Any, ...],
    split: Any,
    padded: tuple[int, ...] = (),
    runs: tuple[Any, ...] = (),
) -> runtime.Tensor:
    return runtime.Tensor(
        *("w", torch.float32, shape, "mesh", split),
        flattened=flattened,
        padded=padded,
        runs=runs,
    )


@pytest.mark.parametrize("spec", SPECS)
def test_parts_make_up_the_whole(spec: Any) -> None:
    own = flat(*spec)
    whole = torch.arange(1.0, 1 + np.prod(own.shape)).reshape(own.shape)
    holders = runtime.holders(own, MESH)
    parts = {rank: runtime.shard(whole, own, MESH, rank) for rank in holders}
    for part in parts.values():
        assert tuple(part.shape) == runtime.local_shape(own, MESH)
    assert torch.equal(runtime.assemble(parts, own, MESH), whole)


@pytest.mark.parametrize("spec", SPECS)
def test_initial_parts_are_parts_of_the_whole(spec: Any) -> None:
    own = flat(*spec)
    whole = initial.parameter(
        runtime.Tensor("w", torch.float32, own.shape, initial="ones"), None, 0, 3
    )
    ones = runtime.replace(own, initial="ones")
    for rank in MESH.ranks:
        part = initial.parameter(ones, MESH, rank, 3)
        assert torch.equal(part, runtime.shard(whole, own, MESH, rank))


@pytest.mark.parametrize("spec", SPECS)
def test_boxes_hold_every_element_once(spec: Any) -> None:
    own = flat(*spec)
    whole = torch.arange(1.0, 1 + np.prod(own.shape)).reshape(own.shape)
    found = torch.zeros_like(whole)
    for rank in runtime.holders(own, MESH):
        part = runtime.shard(whole, own, MESH, rank).contiguous()
        for start, place, sizes in boxes.boxes(own, MESH, rank):
            box = boxes.box_of(found, start, sizes)
            box += boxes.box_of(part, place, sizes)
    assert torch.equal(found, whole)


def test_a_range_of_a_matrix_is_few_boxes() -> None:
    own = flat((1000, 999), (999999, ()), ((("d", None),),))
    assert [len(boxes.boxes(own, MESH, rank)) for rank in (4, 0, 2)] == [2, 3, 2]


def training_gpt(vocabulary: int = 16, layers: int = 1, **options: Any) -> ModuleOp:
    """The training step of a small GPT, whose sizes are multiples of 2 and not of 3."""
    module = build_gpt(layers, 8, 2, vocabulary, 6, 4)
    DifferentiatePass(**options).apply(Context(), module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_three_processes_train_as_one(
    zero: int, tmp_path: Path, spawner: Spawner
) -> None:
    """With the norm of all gradients; ZeRO 1 and 3 are in the other tests without it."""
    module = training_gpt(clip=0.1)
    expected = train(tmp_path, module, spawner, Training(3), d=1)
    found = train(tmp_path, module, spawner, Training(3), d=3, zero=zero)
    assert_close(found, expected)


@pytest.mark.slow
def test_three_by_two_processes_train_as_one(tmp_path: Path, spawner: Spawner) -> None:
    """
    Parts that tensor parallelism leaves are flattened, and gathered ahead of their use;
    states of sums without Adam.
    """
    module = training_gpt(layers=2, optimizer="sgd", momentum=0.9)
    expected = train(tmp_path, module, spawner, Training(3), d=1)
    how = {"d": 3, "t": 2, "zero": 3, "overlap": True}
    assert_close(train(tmp_path, module, spawner, Training(3), **how), expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"d": 3, "zero": 3}, {"d": 2, "zero": 1}),
        # Made of the one before, the next test and that of three processes.
        pytest.param(
            {"d": 2, "t": 2, "zero": 1}, {"d": 3, "zero": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=["from-three", "to-three"],
)
def test_a_training_goes_on_under_another_distribution(
    before: dict[str, int], after: dict[str, int], tmp_path: Path, spawner: Spawner
) -> None:
    module, checkpoints = training_gpt(clip=0.1), tmp_path / "checkpoints"
    expected = train(tmp_path, module, spawner, Training(4), d=1)
    saving = Training(2, checkpoints=checkpoints, save_every=2)
    train(tmp_path, module, spawner, saving, **before)
    resuming = Training(4, checkpoints=checkpoints, resume="latest")
    found = train(tmp_path, module, spawner, resuming, **after)
    expected["loss"] = expected["loss"][2:]
    assert_close(found, expected)


def test_a_padded_vocabulary_trains_as_one(tmp_path: Path, spawner: Spawner) -> None:
    """Also from the checkpoint of a run that had it as it is, and with ZeRO."""
    module, checkpoints = training_gpt(vocabulary=19), tmp_path / "checkpoints"
    expected = train(tmp_path, module, spawner, Training(4), d=1)
    saving = Training(2, checkpoints=checkpoints, save_every=2)
    found = train(tmp_path, module, spawner, saving, t=2)
    np.testing.assert_allclose(found["loss"], expected["loss"][:2], 1e-4)
    resuming = Training(4, checkpoints=checkpoints, resume="latest")
    found = train(tmp_path, module, spawner, resuming, d=3, t=2, zero=2)
    expected["loss"] = expected["loss"][2:]
    assert_close(found, expected)


@pytest.mark.slow  # transforms/uneven_sizes interprets padded heads; a padded vocabulary trains on processes
def test_padded_heads_train_as_one(tmp_path: Path, spawner: Spawner) -> None:
    """
    Groups of three query heads on two devices, from the checkpoint of a run that had them as
    they are, and (in `make test-all`) with ZeRO.
    """
    module, checkpoints = (
        build_llama(1, 12, 6, 16, 4, 4, kv_heads=2),
        tmp_path / "saved",
    )
    DifferentiatePass().apply(Context(), module)
    expected = train(tmp_path, module, spawner, Training(4), d=1)
    saving = Training(2, checkpoints=checkpoints, save_every=2)
    found = train(tmp_path, module, spawner, saving, t=4, pad=("heads",))
    np.testing.assert_allclose(found["loss"], expected["loss"][:2], 1e-4)
    resuming = Training(4, checkpoints=checkpoints, resume="latest")
    how: dict[str, Any] = {"t": 4, "pad": ("heads",)}
    how |= {"d": 2, "zero": 1} if IS_THOROUGH else {}
    expected["loss"] = expected["loss"][2:]
    assert_close(train(tmp_path, module, spawner, resuming, **how), expected)
