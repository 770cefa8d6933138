"""The searches of the golden record: grids, automatic ones, shardings at both levels, stages."""

from __future__ import annotations

import contextlib
import json
from io import StringIO
from pathlib import Path

import pytest

from distir.tools.cli import main as distir
from distir.tools.distir_opt import main as distir_opt

COMMANDS: dict[str, tuple[str, str]] = {
    f"{model} | search {words}": (model, words)
    for model, words in (
        ("gpt", "--cluster dgx-a100 --devices 8"),
        ("gpt", "--cluster dgx-a100 --devices 8 --profile none --zero 0,1,3"),
        ("gpt-forward", "--cluster dgx2 --devices 4"),
        ("moe", "--cluster dgx-h100 --devices 8 -e 1,2,4 --micro-batches 2,4"),
        ("llama", "--cluster dgx-h100 --devices 8 --checkpoint none,full --zero 1"),
        ("mlp", "--cluster dgx2 --devices 8 --overlap off,on"),
        ("resnet", "--cluster dgx-a100 --devices 4"),
        ("gpt", "--cluster dgx2 --devices 4 --auto"),
        ("mlp", "--cluster dgx-a100 --devices 4 --auto --profile none"),
        ("llama-tied", "--cluster dgx-a100 --devices 4 --auto --micro-batches 1,4"),
        ("mixtral", "--cluster dgx-h100 --devices 4 --auto"),
    )
}
"""The options of `distir search`, and the model."""

PASSES: dict[str, tuple[str, str]] = {
    f"{model} | {words}": (model, words)
    for model, words in (
        ("gpt", 'search-sharding{axes="d=2","t=2" cluster=dgx-a100}'),
        ("gpt", 'search-sharding{axes="d=2","t=2" cluster=dgx-a100 level=O2}'),
        ("gpt", 'search-sharding{axes="t=4" cluster=dgx-a100 memory=60e6}'),
        ("gpt-forward", 'search-sharding{axes="d=4" cluster=dgx2}'),
        ("moe", 'search-sharding{axes="e=4" cluster=dgx2}'),
        ("moe", 'search-sharding{axes="d=2","t=2" cluster=dgx2 level=O2}'),
        ("llama", 'search-sharding{axes="d=2" p=2 k=4 cluster=dgx-h100}'),
        ("resnet", 'search-sharding{axes="d=2","t=2" cluster=dgx2}'),
        ("bert", "distribute{p=4 k=4 stages=search cluster=dgx-a100 zero=1 d=2}"),
        ("t5", "distribute{p=2 k=4 stages=search cluster=dgx-a100}"),
    )
}
"""Passes of `distir-opt` that search, and the model."""


def search(program: Path, words: str, folder: Path) -> dict[str, str]:
    """
    Runs `distir search` on a file, and returns the text of all results, sorted, and of the
    best program.
    """
    best, results = folder / "best.mlir", folder / "results.json"
    given = [str(program), *words.split(), "--jobs", "1"]
    with contextlib.redirect_stdout(StringIO()), contextlib.redirect_stderr(StringIO()):
        code = distir(["search", *given, "--json", str(results), "-o", str(best)])
    assert code == 0, (program, words)
    rows = json.loads(results.read_text("utf-8"))["outcomes"]
    text = "\n".join(sorted(json.dumps(row, sort_keys=True) for row in rows))
    return {"results": text, "program": best.read_text("utf-8")}


def run_pass(program: Path, words: str, folder: Path) -> dict[str, str]:
    """Runs a pass of `distir-opt` on a file, and returns the text of the program."""
    output = folder / "passed.mlir"
    with contextlib.redirect_stderr(StringIO()), pytest.raises(SystemExit) as ended:
        distir_opt([str(program), "-p", words, "-o", str(output)])
    assert ended.value.code == 0, (program, words)
    return {"program": output.read_text("utf-8")}
