"""Plain `xdsl-opt` finds DistIR through the `xdsl.universe` entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.command_line import Finished, distir, write_program
from xdsl.universe import Universe
from xdsl.xdsl_opt_main import xDSLOptMain

from distir.dialects import get_all_dialects
from distir.lowering import get_all_targets
from distir.passes import get_all_passes

TWO_DEVICES = """
device.cluster @pair {
  device.kind @cpu on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e9 : f64, peak_flops = {default = 1.0e9 : f64}, launch_latency = 0.0 : f64}
  device.link @bus spans 2 {bandwidth = 1.0e9 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <t = 2> [0 to 2]
func.func @main(
    %x: tensor<4x8xf32> {dist.layout = #dist.layout<@mesh, [{}, {t}]>},
    %w: tensor<8x6xf32> {dist.layout = #dist.layout<@mesh, [{t}, {}]>}
) -> tensor<4x6xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  func.return %y : tensor<4x6xf32>
}
"""


def xdsl_opt(*arguments: str | Path) -> Finished:
    """Runs it in this process, where it finds entry points as in its own."""
    return distir(*arguments, command=lambda given: xDSLOptMain(args=given).run())


def test_xdsl_opt_lists_passes_and_the_torch_target():
    listed = "".join(xdsl_opt("--help").output.split())
    for name in get_all_passes():
        assert name in listed
    assert "torch" in listed


def test_xdsl_opt_partitions(tmp_path: Path):
    program = write_program(tmp_path / "program.mlir", TWO_DEVICES)
    tool = Path(sys.executable).with_name("xdsl-opt")
    passes = "propagate-sharding,partition,verify-distribution"
    done = subprocess.run([tool, program, "-p", passes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "collective.all_reduce %y over [t]" in done.stdout


def test_xdsl_opt_emits_torch(tmp_path: Path):
    program = write_program(tmp_path / "program.mlir", TWO_DEVICES)
    done = xdsl_opt(program, "-p", "propagate-sharding,partition", "-t", "torch")
    assert done.code == 0, done.errors
    assert "import torch" in done.output


def test_every_dialect_pass_and_target_loads():
    everything = Universe.get_multiverse()
    for ours, listed in (
        (get_all_dialects(), everything.all_dialects),
        (get_all_passes(), everything.all_passes),
        (get_all_targets(), everything.all_targets),
    ):
        assert set(ours) <= set(listed)
        for name, load in ours.items():
            assert load().name == name


def test_xdsl_opt_keeps_names_outside_of_ascii(tmp_path: Path):
    text = TWO_DEVICES.replace(
        "%x: tensor<4x8xf32> {", '%x: tensor<4x8xf32> {dist.name = "dénse", '
    )
    # Printed once, as bytes, which plain xDSL does not read as text again.
    printed = tmp_path / "printed.mlir"
    printed.write_text(xdsl_opt(write_program(tmp_path / "m.mlir", text)).output)
    assert '"d\\C3\\A9nse"' in printed.read_text()
    done = xdsl_opt(printed, "-p", "propagate-sharding,partition", "-t", "torch")
    assert done.code == 0, done.errors
    assert "'dénse'" in done.output
