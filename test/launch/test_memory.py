"""The simulator's peak memory is that of the generated package, for every way to distribute."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import failure, succeed
from support.memory_programs import training_step
from support.programs import parse
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.launch.memory import CountedMemory, count_memory
from distir.launch.packages import Spawner
from distir.lowering.torch_package import write_package
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.programs import replace_cluster

MOST = 0.05
"""How far the simulated peak may be from the counted one, as a part of it."""

PLANS: dict[str, dict[str, Any]] = {
    "one": {},
    "d2": {"d": 2},
    "t2": {"t": 2},
    "zero1": {"d": 2, "zero": 1},
    "zero3": {"d": 2, "zero": 3},
    "zero3-overlap": {"d": 2, "zero": 3, "overlap": True},
    "checkpoint": {"checkpoint": "full"},
    "sequence": {"d": 2, "t": 2, "sequence_parallel": True, "checkpoint": "selective"},
    "k4": {"k": 4},
    "p2": {"p": 2, "k": 4},
    "p2-d2-zero1": {"p": 2, "k": 4, "d": 2, "zero": 1},
}
FURTHER_PLANS: dict[str, dict[str, Any]] = {
    "c2": {"c": 2},
    "ring": {"c": 2, "context": "ring"},
    "tokens": {"t": 2, "sequence_parallel": True},
    "zero3-t2": {"d": 2, "t": 2, "zero": 3},
    "offload": {"offload_states": True},
    "offload-zero1": {"d": 2, "zero": 1, "offload_states": True},
    "meshes": {"p": 2, "k": 4, "stage_meshes": ("d=2", "t=2")},
    "save": {"checkpoint": "save:onnx.MatMul+train.attention"},
    "recompute": {"checkpoint": "recompute:onnx.Gelu+train.layer_norm"},
    "activations": {"checkpoint": "offload"},
    "half": {"checkpoint": "full:1/2"},
    "zbv": {"p": 2, "k": 4, "schedule": "zbv"},
    "gpipe": {"p": 2, "k": 4, "schedule": "gpipe"},
}
"""Plans that a GPT, and some of the other families, have as well."""

NOT_COUNTED = {("mlp", "sequence")}
"""It has no norm to split."""

CASES = [
    *(
        (family, plan)
        for plan in PLANS
        for family in ("gpt", "gpt_parameters", "mlp", "moe", "llama", "bert")
        if (family, plan) not in NOT_COUNTED
    ),
    *(("gpt", plan) for plan in FURTHER_PLANS),
    *(("moe", plan) for plan in ("c2", "zero3-t2", "meshes", "zbv")),
    *(("llama", plan) for plan in ("ring", "meshes")),
    *(("gpt_parameters", plan) for plan in ("offload", "zbv")),
    *(("bert", plan) for plan in ("offload", "tokens")),
    *(("resnet", plan) for plan in ("one", "d2", "t2", "zero3", "checkpoint")),
    *(("unet", plan) for plan in ("one", "d2", "k4", "zero3")),
    *(("vit", plan) for plan in ("one", "t2", "zero3", "checkpoint", "p2")),
    *(("t5", plan) for plan in ("one", "t2", "zero3", "checkpoint", "c2")),
    *(("mamba", plan) for plan in ("one", "t2", "zero3", "checkpoint", "p2")),
    *(("float8", plan) for plan in ("one", "t2", "zero3", "checkpoint")),
]


def spread(module: ModuleOp, **options: Any) -> ModuleOp:
    """The program over as many CPUs as the options need; the given one stays as it is."""
    module, given = module.clone(), DistributionOptions(**options)
    replace_cluster(module, load_cluster("cpu", given.devices))
    distribute(module, given)
    return module


def counted(module: ModuleOp, folder: Path, spawner: Spawner) -> list[CountedMemory]:
    return count_memory(write_package(module, folder), spawner=spawner)


def assert_as_simulated(
    family: str, plan: str, most: float, folder: Path, spawner: Spawner
) -> None:
    module = spread(training_step(family), **(PLANS | FURTHER_PLANS)[plan])
    simulated = simulate(module).peak_memory_bytes
    for memory in counted(module, folder, spawner):
        for rank in memory.ranks:
            assert simulated[rank] == pytest.approx(memory.peak, rel=most)


SAMPLE = {
    ("gpt", "sequence"),
    ("gpt_parameters", "offload"),
    ("mlp", "p2-d2-zero1"),
    ("llama", "t2"),
    ("moe", "checkpoint"),
    ("resnet", "checkpoint"),
    ("float8", "one"),
}
"""
What `make test` tries: families that are imported or built in different ways, and plans that
have the parts of the others.
"""


def cases(given: Iterable[tuple[str, str]]) -> list[Any]:
    """The cases, those outside the sample only in `make test-all`."""
    return [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in given
    ]


def test_the_sample_is_of_the_cases() -> None:
    assert set(CASES) >= SAMPLE


@pytest.mark.parametrize(("family", "plan"), cases(CASES))
def test_packages(family: str, plan: str, tmp_path: Path, spawner: Spawner) -> None:
    assert_as_simulated(family, plan, MOST, tmp_path, spawner)


def test_what_is_held(tmp_path: Path, spawner: Spawner) -> None:
    """Lines of `program.py` that hold memory at the peak; 0 stands for arguments."""
    (memory,) = counted(spread(training_step("mlp")), tmp_path, spawner)
    assert memory.ranks == (0,)
    assert sum(memory.held.values()) == memory.peak
    parameters = 6 * (256 * 256 + 256) * 4
    assert memory.held[0] >= 3 * parameters
    lines = (tmp_path / "program.py").read_text().splitlines()
    assert any("F.linear" in lines[line - 1] for line in memory.held if line)


def test_shapes_that_depend_on_values(tmp_path: Path, spawner: Spawner) -> None:
    """Such a program is refused, in one paragraph."""
    module = parse("""
        func.func @main(%x: tensor<8xf32> {dist.role = "input", dist.name = "x"}) -> tensor<1x?xi64> {
          %y = onnx.NonZero(%x) : (tensor<8xf32>) -> tensor<1x?xi64>
          func.return %y : tensor<1x?xi64>
        }""")
    with pytest.raises(DistIRError, match="cannot be counted without values"):
        counted(module, tmp_path, spawner)


@pytest.mark.usefixtures("shared_ranks")
def test_the_command(tmp_path: Path) -> None:
    program = tmp_path / "program.mlir"
    succeed("build", "mlp", "--layers", "2", "--d-model", "64", "--batch", "64",
            "--training", "-o", program)  # fmt: skip
    succeed("distribute", program, "--cluster", "cpu", "-d", "2", "-o", program)
    shown = succeed("lower", program, "-o", tmp_path / "package", "--check-memory")
    (row,) = [line for line in shown.output.splitlines() if "0, 1" in line]
    assert float(row.split()[-1]) == pytest.approx(1, rel=MOST)


def test_the_command_without_a_cluster(tmp_path: Path) -> None:
    program = tmp_path / "program.mlir"
    succeed(
        "build", "mlp", "--layers", "2", "--d-model", "8", "--batch", "8", "-o", program
    )
    said = failure("lower", program, "-o", tmp_path / "package", "--check-memory")
    assert "cluster" in said
