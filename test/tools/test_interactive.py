"""xDSL's interactive app, which `distir-gui` opens, has our dialects and passes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.command_line import distir

from distir.tools import interactive

PROGRAM = """
func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
"""


def test_the_app_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "find_spec", lambda name: None)
    done = distir(command=interactive.main)
    assert done.code == 1
    assert "pip install 'distir[viz]'" in done.errors


@pytest.mark.slow
def test_the_app_runs_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textual")
    pytest.importorskip("pyclip")
    from xdsl.interactive.app import InputApp

    outputs: list[str] = []

    def run(app: InputApp) -> None:
        async def look() -> None:
            async with app.run_test() as pilot:
                await pilot.pause()
                outputs.append(app.output_text_area.text)

        asyncio.run(look())

    monkeypatch.setattr(InputApp, "run", run)
    file = tmp_path / "program.mlir"
    file.write_text(PROGRAM)
    passes = "distribute{d=2 cluster=cpu}"
    done = distir(file, "-p", passes, command=interactive.main)
    assert done.code == 0, done.errors
    (text,) = outputs
    assert "device.mesh @mesh on @cpu <d = 2> [0 to 2]" in text
    assert "tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>" in text
