"""`distir.search`, as users of Python call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import succeed, write_program
from torch import nn

import distir

TWO: dict[str, Any] = dict(cluster="dgx2", world_size=2, jobs=1)


def test_the_plan_is_the_one_of_the_command(tmp_path: Path) -> None:
    model, out = write_program(tmp_path / "m.mlir"), tmp_path / "out.json"
    command = ("search", model, "--cluster", "dgx2", "--world-size", "2", "--jobs", "1")
    done = succeed(*command, "--json", out)
    plan = distir.search(model, **TWO)
    assert str(plan.result.plan) in done.output
    assert plan.devices == 2 and plan.batch == 8
    assert 0 < plan.memory_bytes < 32e9
    assert f"chosen: {plan.result.plan}" in plan.explain()
    assert "runner-up" in plan.explain() and "memory does not bind" in plan.explain()
    assert plan.explain().splitlines()[0] in plan._repr_html_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("auto", [False, True], ids=["grid", "auto"])
def test_progress(
    auto: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_program(tmp_path / "m.mlir")
    told: list[tuple[int, int | None]] = []
    options = TWO | ({"auto": True, "time_limit": 5} if auto else {})
    plan = distir.search(model, **options, progress=lambda *now: told.append(now))
    done = [now for now, _ in told]
    assert done == sorted(done) and done[-1] > 0
    totals = {total for _, total in told}
    assert totals == ({None} if auto else {done[-1]})
    assert not capsys.readouterr().err
    shown = distir.search(model, **options, progress=True)
    assert shown.result.plan == plan.result.plan
    assert ("plans judged" in capsys.readouterr().err) == auto


def test_messages() -> None:
    """With buckets, as everywhere by default, data parallelism takes less time."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    options: dict[str, Any] = {"loss": "mse", "degrees": [(2, 1, 1)], **TWO}
    plain = distir.search(model, (torch.zeros(8, 16),), **options, buckets=False)
    fewer = distir.search(model, (torch.zeros(8, 16),), **options)
    assert "no-buckets" in str(plain) and "buckets" not in str(fewer)
    assert fewer.time_s < plain.time_s


def test_auto(tmp_path: Path) -> None:
    model = write_program(tmp_path / "m.mlir")
    plan = distir.search(model, **TWO, auto=True, overlap="off", shard="l0.weight:1=t")
    assert "t=2" in str(plan.result.plan)
    assert "requests that every plan keeps to: l0.weight:1=t" in plan.explain()


def test_modules_in_training_and_for_inference() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    x = torch.zeros(8, 16)
    trained = distir.search(model, (x,), loss="mse", **TWO, zero=(0, 1))
    roles = {argument.role for argument in trained.arguments}
    assert trained.trains and roles >= {"parameter", "state", "input", "label"}
    inference = distir.search(model, (x,), optimizer=None, **TWO)
    assert not inference.trains and inference.time_s < trained.time_s


def test_devices_and_modules_without_values(tmp_path: Path) -> None:
    """A plan for so many devices of a larger cluster is that of the module with values."""
    options: dict[str, Any] = dict(loss="mse", cluster="dgx2", devices=2, jobs=1)
    plans: list[distir.Plan] = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
            plans.append(distir.search(model, (torch.zeros(8, 16),), **options))
    without, with_values = plans
    assert without.devices == 2 and without.trains
    assert str(without) == str(with_values)
    assert without.time_s == with_values.time_s
    one = distir.search(model, (torch.zeros(8, 16),), **options | dict(devices=1))
    assert one.devices == 1 and "on 1 device" in str(one)
    without.save(tmp_path / "plan.json")
    assert distir.Plan.load(tmp_path / "plan.json") == without


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (dict(model=3), "a int is no model"),
    (dict(model=nn.Linear(4, 4)), "needs example inputs"),
    (dict(model="m.mlir", loss="mse"), "loss are for a module"),
    (dict(model="m.mlir", optimizer="sgd"), "optimizer are for a module"),
    (dict(time_limit=3), "time_limit is of the search with auto"),
    (dict(auto=True, resume="journal"), "resume is of the grid"),
    (dict(zero=4), "not a list of numbers among 0,1,2,3"),
    (dict(schedules="1f2b"), "no pipeline schedule '1f2b'"),
    (dict(checkpoint=("some",)), "no checkpoint policy 'some'"),
    (dict(cluster="dgx9"), "no built-in cluster 'dgx9'"),
    (
        dict(zero=1),
        "ZeRO, activation checkpointing and offloading are for training steps",
    ),
)


@pytest.mark.parametrize(("options", "told"), REFUSED)
def test_what_cannot_be_is_said(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    model = write_program(tmp_path / "m.mlir")
    given: dict[str, Any] = {"model": model, **TWO, **options}
    with pytest.raises(distir.DistIRError, match=told):
        distir.search(**given)


class Branch(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


@pytest.mark.filterwarnings("ignore:PyTorch's older exporter wrote")
def test_differences_are_allowed_by_name() -> None:
    model, x = Branch(4, 4), torch.ones(8, 4)
    with pytest.raises(distir.DistIRError, match=r"if x\.sum\(\) > 0"):
        distir.search(model, (x,), **TWO, loss="mse")
    with pytest.raises(distir.DistIRError, match=r"if x\.sum\(\) > 0"):
        distir.search(model, (x,), **TWO, loss="mse", allow=("mismatch",))
    plan = distir.search(model, (x,), **TWO, loss="mse", allow=("control-flow",))
    assert plan.trains
