"""`distir show`: layouts of arguments, and what devices send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import failure, succeed, write_program
from support.thoroughness import sampled

from distir.interpreters.simulator import simulate
from distir.tools.files import read_program
from distir.tools.reports.reporting import broken

GPT = "gpt --layers 4 --d-model 32 --heads 4 --vocab 64 --batch 8 --seq 8 --training"
SPLIT = ["--cluster", "cpu", "-d", "2", "-t", "2", "-p", "2", "-k", "2", "--zero", "1"]


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step of a GPT on eight devices."""
    folder = tmp_path_factory.mktemp("show")
    step, dist = folder / "step.mlir", folder / "dist.mlir"
    succeed("build", *GPT.split(), "-o", step)
    succeed("distribute", step, *SPLIT, "-o", dist)
    return dist


def lines(text: str) -> dict[str, str]:
    """The lines of the tables, with single spaces, by their first column."""
    cells = [line.split("  ", 1) for line in text.splitlines() if "  " in line]
    return {first: " ".join(rest.split()) for first, rest in cells}


def test_arguments(distributed: Path):
    found = lines(succeed("show", distributed).output)
    column, row = "attn.c_attn.weight (4)", "attn.c_proj.weight (4)"
    assert found[f"transformer.h.*.{column}"] == "32 x 96 - x t 32 x 48 6.14 kB"
    assert found[f"transformer.h.*.{row}"] == "32 x 32 t x - 16 x 32 2.05 kB"
    assert found["input_ids"] == "8 x 8 d x - 4 x 8 256 B"
    assert found["transformer.ln_f.bias"] == "32 whole 32 128 B"
    # Both states of AdamW, in all layers.
    name = "transformer.h.*.attn.c_attn.weight.* (8)"
    assert found[name] == "32 x 96 d x t 16 x 48 3.07 kB"


def test_what_is_sent_adds_up(distributed: Path, tmp_path: Path):
    file = tmp_path / "show.json"
    output = succeed("show", distributed, "--json", file).output
    # Two all-reduces of a layer, each once for a layer of a stage and a micro-batch.
    assert lines(output)["transformer.h.*.mlp.c_proj"] == "all_reduce t 4 8.19 kB"
    sent = json.loads(file.read_text())["communication"]
    result = simulate(read_program(distributed))
    most, stages = max(result.communication_bytes), 2
    assert most <= sum(entry["bytes"] for entry in sent) <= stages * most


def test_a_device_sends_the_sum_of_its_messages(tmp_path: Path):
    model, file = write_program(tmp_path / "model.mlir"), tmp_path / "show.json"
    split = [
        "--cluster",
        "cpu",
        "-d",
        "2",
        "-t",
        "2",
        "--shard",
        "l0.weight:1=t",
        "--shard",
        "l1.weight:0=t",
    ]
    output = succeed("show", model, *split, "--json", file).output
    assert lines(output)["(none)"] == "all_reduce t 1 256 B"
    dist = tmp_path / "dist.mlir"
    succeed("distribute", model, *split, "-o", dist)
    sent = json.loads(file.read_text())["communication"]
    total = sum(entry["bytes"] for entry in sent)
    assert simulate(read_program(dist)).communication_bytes == [total] * 4


def test_one_layer(distributed: Path):
    output = succeed("show", distributed, "--scope", "*.h.3.mlp*").output
    found = lines(output)
    assert found["transformer.h.3.mlp.c_fc.weight"].startswith("32 x 128 - x t")
    assert found["transformer.h.3.mlp.c_proj"] == "all_reduce t 2 4.1 kB"
    assert "transformer.h.2" not in output and "h.*" not in output


def test_a_sequential_program(tmp_path: Path):
    output = succeed("show", write_program(tmp_path / "model.mlir")).output
    assert lines(output)["l0.weight"] == "16 x 32 whole 16 x 32 2.05 kB"
    assert "sends" not in output


def test_errors(distributed: Path):
    assert "matches the scope 'h.9'" in failure("show", distributed, "--scope", "h.9")
    assert "--cluster" in failure("show", distributed, "-t", "2")


@pytest.mark.parametrize("columns", sampled([40, 80, 120], 2))
def test_tables_are_as_wide_as_the_terminal(
    distributed: Path, monkeypatch: pytest.MonkeyPatch, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (["show"], ["simulate", "--memory"]):
        output = succeed(*command, distributed).output
        tables = [line for line in output.splitlines() if set(line) == {"─"}]
        assert tables
        assert all(len(line) <= columns for line in tables)
        assert "…" not in output


def test_names_are_broken_at_their_marks():
    name = "transformer.h.*.attn.c_attn"
    assert broken(name, 40) == [name]
    assert broken(name, 18) == ["transformer.h.*.", "attn.c_attn"]
    assert broken("abcdefgh.i", 3) == ["abc", "def", "gh.", "i"]
    assert broken("", 3) == [""]
