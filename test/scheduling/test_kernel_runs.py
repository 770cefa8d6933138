"""A user's attention kernel in one layer of GPT-2: what its package has, and what it trains."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import pytest
from support.models import imported
from support.schedules import scheduled
from support.torch_training import OPTIONS, assert_equals_pytorch, batch
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.dialects.kernel import KernelCallOp
from distir.errors import DistIRError
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import walk_functions
from distir.program.weights import save_weights
from distir.scheduling import Kernel, Schedule, patterns
from distir.scheduling.kernel_verification import verify_kernels

NAME = "gpt2_causal_deep"
MINE = Path(__file__).with_name("mine.py")


@cache
def asked() -> ModuleOp:
    """A GPT-2 whose layer 3 has a user's kernel."""
    module = imported(NAME).module.clone()
    for transform in (RaisePatternsPass(), OutlineRepeatsPass()):
        transform.apply(Context(), module)
    kernel = Kernel(
        "mine",
        "mine:four",
        rule="[b,h,q,d], [b,h,k,d], [b,h,k,e] -> [b,h,q,e]",
        keep="q k d e",
        gradient="autograd",
    )
    s = Schedule()
    s["transformer.h.3.attn"].find(patterns.causal_attention).replace(kernel)
    return scheduled(module, s)


@pytest.fixture(scope="module")
def step() -> ModuleOp:
    """Its training step over two devices."""
    module = asked().clone()
    DifferentiatePass(**OPTIONS).apply(Context(), module)
    return distributed(module, t=2)


@pytest.mark.slow
def test_the_kernel_is_verified() -> None:
    (found,) = verify_kernels(asked(), [MINE])
    assert found.kernel.symbol == "mine"
    assert found.gradient_difference is not None
    assert max(found.difference, found.gradient_difference) < 1e-4


def test_heads_are_split(step: ModuleOp) -> None:
    calls = [op for _, op in walk_functions(step) if isinstance(op, KernelCallOp)]
    assert [call.symbol for call in calls] == ["mine", "mine_grad"]
    for call in calls:
        for value in (*call.inputs, *call.outputs):
            layout = layout_of(value)
            assert layout is not None and not layout.partial
            assert [s.axis for s in layout.dims[1]] == ["t"]


def test_the_package_trains_as_pytorch_and_needs_torch_alone(
    step: ModuleOp, tmp_path: Path, spawner: Spawner
) -> None:
    weights = tmp_path / "model.safetensors"
    save_weights(weights, imported(NAME).weights)
    with pytest.raises(
        DistIRError, match=r"'mine:four'.* loads no code.*--kernels mine"
    ):
        write_package(step, tmp_path / "none", weights)
    package = write_package(step, tmp_path / "package", weights, kernels=[MINE])
    copy = package / "user_kernels" / "mine.py"
    assert copy.read_bytes() == MINE.read_bytes()
    digest = hashlib.sha256(MINE.read_bytes()).hexdigest()
    assert json.loads((package / "manifest.json").read_text())["kernels"] == {
        "mine": digest
    }
    roots = {
        name.split(".")[0]
        for file in package.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert roots <= {"torch", *sys.stdlib_module_names}
    results = run_package(
        package,
        inputs=batch(NAME),
        weights=weights,
        timeout_s=120,
        spawner=spawner,
        training=Training(3),
    )
    assert_equals_pytorch(NAME, results)
    copy.write_text(copy.read_text() + "# changed\n")
    with pytest.raises(DistIRError, match="is not the file that the package was made"):
        run_package(
            package,
            inputs=batch(NAME),
            weights=weights,
            spawner=spawner,
            training=Training(1),
        )
