"""Ops that eager scripts write out as several kernels: prices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from interpreters.simulator.test_fused_training import ROTARY
from support.cost_programs import parse

from distir.errors import DistIRError
from distir.hardware import FOLDER, load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.profile import (
    Dispatch,
    Profile,
    WrittenOut,
)

ROWS, COLUMNS = 4096, 4096
X, COLUMN = f"tensor<{ROWS}x{COLUMNS}xbf16>", f"tensor<{ROWS}x1xf32>"
NORM = f"""
  func.func @main(%x: {X}, %w: tensor<{COLUMNS}xbf16>) -> {X} {{
    %y, %r = train.rms_norm %x, %w {{axis = 1 : i64, epsilon = 1.0e-5 : f32}} : ({X}, tensor<{COLUMNS}xbf16>) -> ({X}, {COLUMN})
    func.return %y : {X}
  }}"""
LAYER_NORM = (
    NORM.replace("train.rms_norm", "train.layer_norm")
    .replace("%y, %r =", "%y, %m, %r =")
    .replace(f"({X}, {COLUMN})", f"({X}, {COLUMN}, {COLUMN})")
)


def seconds(text: str, name: str, **changes: object) -> float:
    """Returns the time of a program with the built-in profile `name`, changed."""
    profile: Profile = replace(load_profile(name), **changes)  # type: ignore[arg-type]
    cluster = load_cluster("dgx-a100")
    return simulate(parse(text), cluster, profiles=[profile]).step_time_s


def test_a_norm_is_the_kernels_that_the_script_runs():
    """Eight kernels, which move 36 bytes for each element of 16 bits, and weights."""
    curve = load_profile("A100-eager").curve("bf16", "elementwise")
    moved = 9 * (2 * 2 * ROWS * COLUMNS + 2 * COLUMNS + 4 * ROWS)
    expected = 8 * curve.overhead + moved / (2.039e12 * curve.bandwidth)
    none = Dispatch()
    assert seconds(NORM, "A100-eager", dispatch=none) == pytest.approx(expected)
    assert seconds(NORM, "A100-pytorch", dispatch=none) < expected / 5


def test_the_host_issues_each_kernel():
    slow = Dispatch(op=1e-3)
    assert seconds(NORM, "A100-eager", dispatch=slow) == pytest.approx(8e-3)
    waiting = Dispatch(op=1e-3, ahead=False)
    assert seconds(NORM, "A100-eager", dispatch=waiting) == pytest.approx(8e-3)
    assert seconds(NORM, "A100-pytorch", dispatch=slow) == pytest.approx(1e-3)


def test_rotary_positions_are_the_kernels_that_the_script_runs():
    size = 2 * ROWS * COLUMNS
    curve = load_profile("A100-eager").curve("bf16", "elementwise")
    expected = 4 * curve.overhead + 9 * 2 * size / (2.039e12 * curve.bandwidth)
    assert seconds(ROTARY, "A100-eager", dispatch=Dispatch()) == pytest.approx(expected)


def test_other_norms_and_profiles_stay_as_they_are():
    assert seconds(LAYER_NORM, "A100-eager") == seconds(LAYER_NORM, "A100-pytorch")
    for name in ("A100", "A100-llm-foundry", "H100-llm-foundry", "H100-pytorch"):
        assert not load_profile(name).written_out


def test_figures_above_0():
    data = json.loads((FOLDER / "profiles" / "A100.json").read_text())
    kernels = {"kernels": 8, "moved": 9, "source": "counted"}
    data["written_out"] = {"train.rms_norm": kernels}
    found = Profile.parse("mine", data).written_out
    assert found == {"train.rms_norm": WrittenOut(8, 9.0)}
    kernels["moved"] = 0
    with pytest.raises(DistIRError, match="moved"):
        Profile.parse("mine", data)
