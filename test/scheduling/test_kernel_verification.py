"""Kernels are compared with what they take the place of, and wrong ones are refused."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np
import pytest
from support.command_line import distir, failure, succeed
from support.programs import parse
from support.schedules import gpt, scheduled
from support.thoroughness import IS_THOROUGH
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import STOP_GRADIENT
from distir.dialects.onnx import operator
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.lowering.kernel_files import kernel_files
from distir.lowering.torch_package import write_package
from distir.program import argument_names, entry_function, functions
from distir.scheduling import Kernel, Schedule, patterns
from distir.scheduling.kernel_check import KernelCheck, kernel_with_gradient
from distir.scheduling.kernel_verification import verify_kernels
from distir.tools import schedule_verification
from distir.tools.commands import schedule
from distir.tools.distir_opt import main as optimize
from distir.tools.files import write_program
from distir.tools.schedule_verification import verify_schedule

HERE = Path(__file__).parent
RULE = "[b, q, h 4], [b, k, h 4], [b, k, h 4] -> [b, q, h 4]"


def with_kernel(function: str, gradient: str = "reference") -> ModuleOp:
    """A GPT with a kernel in the attention of layer 1."""
    kernel = Kernel("mine", function, RULE, "q k", gradient)
    s = Schedule()
    s["transformer.h.1.attn"].find(patterns.causal_attention).replace(kernel)
    return scheduled(gpt(layers=2), s)


def check(module: ModuleOp, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Checks the kernel of a program in this process; the differences."""
    monkeypatch.syspath_prepend(HERE)
    found: list[float] = []
    for kernel in kernel_with_gradient(module, "mine"):
        name, _, function = kernel.implementation.data.partition(":")
        checked = KernelCheck(kernel, getattr(import_module(name), function))
        checked.run()
        found.append(checked.difference)
    for name in ("mine", "wrong"):
        sys.modules.pop(name, None)
    return found


@pytest.mark.parametrize("gradient", ["reference", "autograd", "mine:backward"])
def test_a_right_kernel_passes(gradient: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(with_kernel("mine:attention", gradient), monkeypatch)
    assert len(found) == 1 + (gradient != "reference")
    assert all(0 < difference < 1e-5 for difference in found)


@pytest.mark.parametrize(
    ("function", "gradient", "message"),
    [
        ("off", "", r"its result is 0.01 from its reference.*the tolerance is 0.001"),
        (
            "mine:attention",
            "off_backward",
            "its gradient of argument 2 is 0.01 from its",
        ),
        ("off_autograd", "autograd", r"its gradient of argument 1 is 1 from its ref"),
        ("mine:attention", "two_gradients", "gives 2 gradients; there are 3 arguments"),
        ("modifies", "", "it modifies its argument 0"),
        (
            "by_heads",
            "",
            "its result computed on parts of 'h' is 0.5 from that of the wh",
        ),
        ("random", "", "two runs on the same inputs give different results"),
        ("half", "", r"gives \(\(4, 8, 16\), torch.float16\); the program takes"),
        ("fails", "", r"it fails \(RuntimeError: Expected size"),
    ],
)
def test_a_wrong_kernel_is_refused(
    function: str, gradient: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> str:
        return name if ":" in name or name == "autograd" else f"wrong:{name}"

    module = with_kernel(full(function), full(gradient) if gradient else "reference")
    with pytest.raises(DistIRError, match=message):
        check(module, monkeypatch)


def test_a_kernel_that_hangs_or_dies_is_refused(tmp_path: Path) -> None:
    alone = tmp_path / "alone.py"
    alone.write_text(
        "import os, time\n"
        "def hangs(q, k, v):\n    time.sleep(1000)\n"
        "def dies(q, k, v):\n    os._exit(3)\n"
        "def wrong(q, k, v):\n    return q + 0\n"
    )
    if IS_THOROUGH:  # else a process for each of the others is enough
        with pytest.raises(
            DistIRError,
            match=r"kernel @mine \(alone:wrong\) is refused: its result is .* from its",
        ):
            verify_kernels(with_kernel("alone:wrong"), [alone], 60)
    with pytest.raises(DistIRError, match=r"@mine \(alone:dies\).*ended with code 3"):
        verify_kernels(with_kernel("alone:dies"), [alone], 60)
    with pytest.raises(DistIRError, match=r"@mine \(alone:hangs\).*not done after 1 s"):
        verify_kernels(with_kernel("alone:hangs"), [alone], 1)


def test_the_command_verifies(tmp_path: Path) -> None:
    model, script, asked = (tmp_path / n for n in ("m.mlir", "s.py", "asked.mlir"))
    write_program(gpt(layers=2), model)
    script.write_text(f"""
from distir.program import argument_names, entry_function, functions
from distir.scheduling import Kernel, Schedule, patterns
def schedule(s: Schedule) -> None:
    mine = Kernel("mine", "mine:attention", {RULE!r}, "q k", "autograd")
    s["transformer.h.1.attn"].find(patterns.causal_attention).replace(mine)
""")
    files = ("--kernels", HERE / "mine.py")
    if IS_THOROUGH:
        out = succeed("schedule", model, script, "--verify", *files, "-o", asked).output
        assert re.search(r"the whole program +1 +\S+ +logits", out)
    training = ("--training", "--loss", "cross_entropy", "--optimizer", "sgd")
    out = succeed("schedule", model, script, "--verify", *files, *training).output
    count = len(argument_names(entry_function(gpt(layers=2))))
    assert "@mine" in out and "mine:attention" in out
    # The loss, the logits, and every parameter; the inputs are not updated.
    compared = re.search(r"a training step +(\d+) ", out)
    assert compared is not None and int(compared[1]) >= count
    assert "'mine:attention', but text loads no code" in failure(
        "schedule", model, script, "--verify"
    )
    assert "--training is of use with --tune only" in failure(
        "schedule", model, script, "--print", "--training"
    )


@pytest.mark.parametrize("training", [False, True])
def test_a_program_that_computes_something_else_is_refused(training: bool) -> None:
    """As a rewrite from outside might make it: whatever the kernels do, nothing passes."""
    before = gpt(layers=1)
    after = before.clone()
    if training:
        # The same forward, but no gradient for one of the parameters.
        product = next(op for op in after.walk() if op.name == "onnx.MatMul")
        stopped = operator("Identity").create(
            operands=[product.operands[1]],
            result_types=[product.operands[1].type],
            attributes={STOP_GRADIENT: UnitAttr()},
        )
        Rewriter.insert_op(stopped, InsertPoint.before(product))
        product.operands[1] = stopped.results[0]
    else:
        (gelu,) = (op for op in after.walk() if op.name == "onnx.Gelu")
        relu = operator("Relu").create(
            operands=gelu.operands, result_types=gelu.result_types
        )
        Rewriter.replace_op(gelu, relu)
    parser = argparse.ArgumentParser()
    schedule.add_arguments(parser)
    step = ["--training", "--loss", "cross_entropy", "--optimizer", "sgd"]
    options = step if training else []
    arguments = parser.parse_args(["m.mlir", "s.py", "--verify", *options])
    verify_schedule(before, before.clone(), False, arguments)
    message = (
        r"m.mlir as s.py schedules it does not compute what m.mlir does: '.*' by \d"
    )
    with pytest.raises(DistIRError, match=message):
        verify_schedule(before, after, False, arguments)


def test_a_program_that_is_too_large_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = gpt(layers=2)
    shared = functions(module)["layer"].body.block
    own = [op for op in entry_function(module).body.block.ops if op.name != "func.call"]
    values = [*entry_function(module).body.block.args]
    values += [v for op in own for v in op.results]
    values += [v for op in shared.ops for v in op.results] * 2
    calls = [shared.last_op.operands[0]] * 2  # type: ignore[union-attr]
    expected = sum(prod(shape_of(v)) for v in (*values, *calls))
    assert schedule_verification.elements_of(module) == expected
    monkeypatch.setattr(schedule_verification, "MOST_ELEMENTS", expected - 1)
    parser = argparse.ArgumentParser()
    schedule.add_arguments(parser)
    arguments = parser.parse_args(["m.mlir", "s.py", "--verify"])
    verify_schedule(module, module, False, arguments)
    found = capsys.readouterr()
    assert f"its values have {expected:,} elements" in found.err + found.out


def test_text_never_loads_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What asks for a function of the standard library, or of a module that does something when
    it is imported, is simulated, searched and checked, but not lowered.
    """
    module, dist = tmp_path / "m.mlir", tmp_path / "d.mlir"
    (tmp_path / "loaded_by_text.py").write_text("raise SystemExit('was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for function in ("os:system", "loaded_by_text:f"):
        write_program(with_kernel(function), module)
        refused = f"kernel @mine asks for '{function}', but text loads no code"
        if function.startswith("os") and not IS_THOROUGH:
            assert refused in failure("lower", module, "-o", tmp_path / "package")
            continue
        succeed("distribute", module, "--cluster", "cpu", "-t", "2", "-o", dist)
        succeed("simulate", dist)
        succeed("search", module, "--cluster", "cpu", "--devices", "2")
        assert "DIFFERS" not in succeed("check", module, dist).output
        verified = distir(dist, "-p", "verify-distribution", command=optimize)
        assert verified.code == 0, verified.errors
        assert refused in failure("lower", dist, "-o", tmp_path / "package")
        assert refused in failure("run", dist, "--backend", "gloo")
        mine = ("--kernels", HERE / "mine.py")
        assert refused in failure("lower", dist, "-o", tmp_path / "package", *mine)
        assert not (tmp_path / "package").exists()
    assert "loaded_by_text" not in sys.modules


@pytest.mark.usefixtures("shared_ranks")
def test_a_program_with_a_kernel_runs(tmp_path: Path) -> None:
    module, dist, outputs = (tmp_path / n for n in ("m.mlir", "d.mlir", "out.npz"))
    write_program(with_kernel("mine:attention"), module)
    succeed("distribute", module, "--cluster", "cpu", "-t", "2", "-o", dist)
    run = ("run", dist, "--backend", "gloo", "--outputs", outputs)
    succeed(*run, "--kernels", HERE / "mine.py")
    found = np.load(outputs)
    plain = gpt(layers=2)
    wanted = run_program(plain, random_arguments(plain, 0))
    for name, value in zip(found.files, wanted, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_installed_packages_publish_kernels_that_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "fast-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[distir.kernels]\nquick = fast_kernels\n")
    (tmp_path / "fast_kernels.py").write_text("raise SystemExit('was imported')\n")
    module = with_kernel("quick:attention")
    with pytest.raises(DistIRError, match="'quick:attention', but text loads no code"):
        kernel_files(module, [])
    monkeypatch.syspath_prepend(tmp_path)
    (file,) = kernel_files(module, []).values()
    assert file.path == tmp_path / "fast_kernels.py"
    package = write_package(module, tmp_path / "package")
    assert (package / "user_kernels" / "quick.py").read_bytes() == file.text


def test_a_program_of_unknown_sizes_has_no_number_of_elements() -> None:
    module = parse("""
    func.func @main(%x: tensor<4xf32>) -> tensor<?xf32> {
      %y = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<?xf32>
      func.return %y : tensor<?xf32>
    }""")
    assert schedule_verification.elements_of(module) is None
