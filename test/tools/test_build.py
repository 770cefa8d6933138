"""`distir build`: published sizes, and what replaces their options."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import failure, succeed

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
