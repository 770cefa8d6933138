"""The example of docs/compilers.md gives what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from support.command_line import distir

from distir.tools import distir_opt

PAGE = Path(__file__).parents[2] / "docs" / "compilers.md"


def test_the_program_for_all_ranks(tmp_path: Path) -> None:
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.S))
    file = tmp_path / "mlp.mlir"
    file.write_text(blocks["mlir"])
    passes = re.findall(r'distir-opt mlp.mlir -p "(.*)"', blocks["sh"])
    done = distir(file, "-p", *passes, command=distir_opt.main)
    assert done.code == 0, done.errors
    assert blocks["text"] in done.output
