"""Training by processes in groups that hold what ZeRO splits, and that share experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.thoroughness import IS_THOROUGH, sampled
from support.training_programs import assert_close, train
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_moe
from distir.launch.packages import Spawner, Training
from distir.passes.differentiate import DifferentiatePass


def training_gpt() -> ModuleOp:
    """The training step of a small GPT whose gradients are clipped."""
    module = build_gpt(1, 8, 2, 16, 8, 4)
    DifferentiatePass(clip=0.1).apply(Context(), module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"zero": 3, "k": 2}, {"zero": 2, "overlap": True}], ids=str
)
def test_two_groups_of_two_train_as_one_process(
    how: dict[str, Any], tmp_path: Path, spawner: Spawner
) -> None:
    module = training_gpt()
    expected = train(tmp_path, module, spawner, Training(3), d=1)
    assert_close(
        train(tmp_path, module, spawner, Training(3), r=2, d=2, **how), expected
    )


@pytest.mark.slow  # planning/test_zero_over_experts interprets such steps
def test_what_is_no_expert_is_split_over_their_axis(
    tmp_path: Path, spawner: Spawner
) -> None:
    module = build_moe(2, 8, 2, 4, 16, 8, 4)
    DifferentiatePass(clip=0.1).apply(Context(), module)
    expected = train(tmp_path, module, spawner, Training(3), d=1)
    how = {"d": 2, "e": 2, "k": 2, "zero": 3}
    assert_close(train(tmp_path, module, spawner, Training(3), **how), expected)


@pytest.mark.parametrize(
    "other", sampled([{"d": 2, "t": 2}, {"d": 4, "zero": 1}], 2), ids=str
)
def test_a_training_goes_on_under_another_plan(
    other: dict[str, int], tmp_path: Path, spawner: Spawner
) -> None:
    """The groups' copies are written once; and others read them, and they others'."""
    module, groups = training_gpt(), {"r": 2, "d": 2, "zero": 3, "k": 2}
    expected = train(tmp_path, module, spawner, Training(4), d=1)
    expected["loss"] = expected["loss"][2:]
    pairs = [(groups, other), (other, groups)] if IS_THOROUGH else [(groups, other)]
    for number, (before, after) in enumerate(pairs):
        folder = tmp_path / str(number)
        checkpoints = folder / "checkpoints"
        saving = Training(2, checkpoints=checkpoints, save_every=2)
        train(folder, module, spawner, saving, **before)
        resuming = Training(4, checkpoints=checkpoints, resume="latest")
        assert_close(train(folder, module, spawner, resuming, **after), expected)
