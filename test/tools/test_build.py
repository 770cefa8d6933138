"""`distir build`: published sizes, and what replaces their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import failure, succeed
from support.thoroughness import sampled

import distir
from distir.program import entry_points
from distir.tools.files import read_program


def text_of(folder: Path, *words: str) -> str:
    path = folder / "model.mlir"
    succeed("build", *words, "-o", path)
    read_program(path)
    return path.read_text()


def test_a_published_size(tmp_path: Path):
    text = text_of(tmp_path, "llama", "--size", "8B", "--batch", "2", "--seq", "16")
    assert "tensor<2x16x128256xf32>" in text
    assert "tensor<14336x4096xf32>" in text
    assert text.count("func.call @layer(") == 32


def test_options_replace_those_of_the_size(tmp_path: Path):
    words = ("--size", "19-million", "--batch", "2", "--classes", "10")
    assert "tensor<10x4096xf32>" in text_of(tmp_path, "vgg", *words)


def test_training_takes_the_batchs_statistics(tmp_path: Path):
    words = ("wide-resnet", "--layers", "50", "--channels", "2", "--batch", "2")
    small = (*words, "--image", "64")
    assert "batch_norm_variance" not in text_of(tmp_path, *small)
    assert "batch_norm_variance" in text_of(tmp_path, *small, "--training")


def test_a_switch(tmp_path: Path):
    words = ("--layers", "1", "--d-model", "16", "--heads", "2", "--vocab", "8")
    words = ("llama", *words, "--batch", "1", "--seq", "4")
    assert "%lm_head.weight" in text_of(tmp_path, *words)
    assert "%lm_head.weight" not in text_of(tmp_path, *words, "--tied")


SMALL = ("--layers", "2", "--d-model", "16", "--heads", "4", "--vocab", "32")
SERVED = (*SMALL, "--batch", "4", "--serve", "--cache", "12", "--prompt", "6")


@pytest.mark.parametrize(
    ("model", "plan"),
    sampled(
        [
            (("gpt",), ("-t", "2")),
            (("llama", "--kv-heads", "2"), ("-t", "2", "-d", "2")),
            (("llama", "--kv-heads", "2"), ("-p", "2")),
            (("moe", "--experts", "4"), ("-e", "2")),
        ],
        4,
    ),
)
def test_the_steps_of_generation(
    tmp_path: Path, model: tuple[str, ...], plan: tuple[str, ...]
):
    """Every command takes the program with two entries."""
    source, split, saved = (tmp_path / n for n in ("m.mlir", "d.mlir", "plan.json"))
    succeed("build", *model, *SERVED, "-o", source)
    succeed("distribute", source, "--cluster", "dgx-a100", *plan, "-o", split)
    table = succeed("check", source, split).output
    rows = re.findall(r"^(\S.*?)  .* (equal|DIFFERS)$", table, re.M)
    assert len(rows) == 2 * (1 + 2) + 1  # keys of two layers are one row
    assert {verdict for _, verdict in rows} == {"equal"}
    assert rows[-1][0] == "decode after prefill"
    for entry in ("prefill", "decode"):
        assert "step time" in succeed("simulate", split, "--entry", entry).output
    on = ("--cluster", "dgx-h100", "--devices", "2")
    succeed("search", source, "--entry", "decode", *on, "--save-plan", saved)
    succeed("distribute", source, "--plan", saved, "-o", tmp_path / "p.mlir")
    succeed("lower", split, "-o", tmp_path / "package")
    assert (tmp_path / "package" / "prefill_program.py").exists()
    quick = ("--requests", "20", "--batched-tokens", "32", "--max-sequences", "8")
    service = ("serve-plan", source, *on, "--prompt", "6", *quick)
    assert "plan: " in succeed(*service, "--generate", "6").output
    assert "its cache has 12" in failure(*service, "--generate", "7")


def test_python_builds_the_steps_of_generation():
    sizes: dict[str, Any] = {
        "layers": 1,
        "d_model": 16,
        "heads": 4,
        "vocab": 32,
        "batch": 2,
    }
    program = distir.build("gpt", **sizes, serve=True, cache=8)
    assert list(entry_points(program.module)) == ["prefill", "decode"]
    program = distir.build("gpt", **sizes, seq=8, cache=True)
    assert not entry_points(program.module)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt", "--cache"), "--serve needs --cache N"),
        (("llama",), "--serve needs --cache N"),
        (("gpt", "--cache", "8", "--prompt", "9"), "longer than the 8 tokens"),
        (("gpt", "--cache", "8", "--decode", "4"), "--decode does not go with"),
        (("gpt", "--cache", "8", "--dropout", "0.1"), "--dropout does not go with"),
        (("llama", "--cache", "8", "--seq", "4"), "--seq does not go with"),
        (("llama", "--cache", "8", "--training"), "--training does not go with"),
        (("llama", "--cache", "8", "--float8", "row"), "--float8 does not go with"),
    ],
)
def test_options_that_generation_does_not_have(
    tmp_path: Path, words: tuple[str, ...], message: str
):
    path = tmp_path / "m.mlir"
    given = (*words, *SMALL, "--batch", "2", "--serve", "-o", path)
    assert message in failure("build", *given)


def test_options_of_generation_alone(tmp_path: Path):
    common = (*SMALL, "--batch", "2", "-o", tmp_path / "m.mlir")
    for model in ("gpt", "llama"):
        for option in ("--cache", "--prompt"):
            message = failure("build", model, *common, "--seq", "4", option, "3")
            assert "is of use with --serve only; add it" in message
        assert "needs --seq" in failure("build", model, *common)
    assert "no argument --serve" in failure(
        "build", "bert", *common, "--seq", "4", "--serve", code=2
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("llama", "--batch", "1", "--seq", "8"),
            1,
            "needs --layers and --d-model and --heads",
        ),
        (("llama", "--batch", "1", "--seq", "8"), 1, "or a --size (8B, 70B, 405B)"),
        (("llama", "--size", "8B", "--seq", "8"), 2, "--batch"),
        (("llama", "--size", "9B", "--batch", "1"), 2, "invalid choice: '9B'"),
        (("vgg", "--image", "100", "--batch", "1"), 1, "choose a multiple of 32"),
        (("lama", "--batch", "1"), 2, "llama"),
    ],
)
def test_errors(tmp_path: Path, words: tuple[str, ...], code: int, message: str):
    path = tmp_path / "m.mlir"
    assert message in failure("build", *words, "-o", path, code=code)
