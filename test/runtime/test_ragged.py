"""The all-to-all of rows of experts on real processes: what arrives, and how much is sent."""

from __future__ import annotations

from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16
from support.expert_models import experts_step
from support.programs import parse
from support.training_programs import distributed

from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.launch.memory import count_memory
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.runtime.communication import ragged
from distir.transforms.expert_shards import assume_imbalance

ROWS = np.random.default_rng(0).integers(-2, 2, (4, 8, 3))
"""Experts of `[shards, groups, places]`, with about half of the rows empty."""


def program(element: str, attributes: str = "") -> str:
    """
    Rows that go to their experts over both axes, and back over each of them. Their exchanges
    have `attributes` besides.
    """

    def types(shards: str, groups: str) -> tuple[str, str]:
        layout = f"#dist.layout<@mesh, [{{{shards}}}, {{{groups}}}, {{}}"
        return (
            f"tensor<4x8x3x5x{element}, {layout}, {{}}]>>",
            f"tensor<4x8x3xi64, {layout}]>>",
        )

    (x, r), (y, s), (z, t) = types("", "a, b"), types("a, b", ""), types("a", "b")
    return f"""
    device.cluster @box {{
      device.kind @core on [0 to 4] {{memory = 1000000 : i64, memory_bandwidth = 1.0e9 : f64, peak_flops = {{default = 1.0e9 : f64}}, launch_latency = 0.0 : f64}}
      device.link @bus spans 4 {{bandwidth = 1.0e9 : f64, latency = 0.0 : f64}}
    }}
    device.mesh @mesh on @box <a = 2, b = 2> [2, 0, 3, 1]
    func.func @main(%x: {x} {{dist.name = "x"}}, %r: {r} {{dist.name = "r"}}) -> ({y} {{dist.name = "y"}}, {z} {{dist.name = "z"}}) {{
      %s = collective.all_to_all %r over [a, b] : {r} -> {s}
      %t = collective.all_to_all %s over [b] : {s} -> {t}
      %y = collective.ragged_all_to_all %x of %r to %s over [a, b] {{taken = 6 : i64{attributes}}} : {x}, {r}, {s} -> {y}
      %z = collective.ragged_all_to_all %y of %s to %t over [b] {{taken = 6 : i64{attributes}}} : {y}, {s}, {t} -> {z}
      func.return %y, %z : {y}, {z}
    }}"""  # fmt: skip


@pytest.mark.parametrize("rows", [ROWS, np.full_like(ROWS, -1)], ids=["some", "none"])
@pytest.mark.parametrize(
    ("element", "dtype", "attributes"),
    [("f32", np.float32, ""), ("bf16", bfloat16, ", dist.asynchronous")],
)
def test_rows_arrive(
    rows: np.ndarray[Any, Any],
    element: str,
    dtype: type,
    attributes: str,
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    """Rows that are not empty are what they were, and all others zero, whatever was there."""
    x = np.random.default_rng(1).integers(1, 9, (4, 8, 3, 5)).astype(dtype)
    module = parse(program(element, attributes))
    module.verify()
    write_package(module, tmp_path)
    found = run_package(tmp_path, inputs={"x": x, "r": rows}, spawner=spawner)
    expected = np.where(rows[..., None] >= 0, x, np.zeros((), dtype))
    for name, computed in zip("yz", run_program(module, [x, rows]), strict=True):
        np.testing.assert_array_equal(computed, expected)
        np.testing.assert_array_equal(found[name], expected)


def test_empty_rows_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers hold as many rows as there are, member by member."""
    calls: list[tuple[torch.Size, torch.Size, list[int], list[int]]] = []

    def record(
        out: Any, sent: Any, received: Any, given: Any, handle: object, async_op: bool
    ) -> None:
        assert not async_op
        calls.append((out.shape, sent.shape, received, given))

    monkeypatch.setattr(ragged, "dist", SimpleNamespace(all_to_all_single=record))
    monkeypatch.setattr(ragged, "_resolve_process_group", str)
    handle = SimpleNamespace(group_name="pair")
    group = SimpleNamespace(size=2, by_number=list, handle=handle)
    rows = torch.tensor([[[0, -1], [-1, -1]], [[1, 0], [-1, 1]]])
    arriving = torch.tensor([[[0, -1], [-1, 1], [1, 1], [0, -1]]])
    x = torch.ones(2, 2, 2, 3)
    ragged.ragged_all_to_all(x, rows, arriving, group, dim=1, split_dim=0)
    assert calls == [((5, 12), (4, 12), [2, 3], [1, 3])]


def test_packages_without_values(tmp_path: Path, spawner: Spawner) -> None:
    """
    Numbers of rows are not known where tensors have no values; values between dispatch and
    combination have the sizes that the simulator counts for the worst case.
    """
    step = experts_step("mixtral").clone()
    assume_imbalance(step, inf)
    module = distributed(step, e=4)
    simulated = simulate(module).peak_memory_bytes
    for memory in count_memory(write_package(module, tmp_path), spawner=spawner):
        for rank in memory.ranks:
            assert simulated[rank] == pytest.approx(memory.peak, rel=0.1)
