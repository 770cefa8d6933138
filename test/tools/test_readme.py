"""The commands of the README are commands of the tools."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from xdsl.utils.arg_spec import parse_pipeline

from distir.lowering import get_all_targets
from distir.passes import get_all_passes
from distir.tools.cli import argument_parser

ROOT = Path(__file__).parents[2]
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for line in block.splitlines()
]


def commands_of(tool: str) -> list[list[str]]:
    found = [words[1:] for words in COMMANDS if words and words[0] == tool]
    assert found
    return found


@pytest.mark.parametrize("words", commands_of("distir"), ids=" ".join)
def test_distir(words: list[str]):
    argument_parser().parse_args(words)


@pytest.mark.parametrize("words", commands_of("distir-opt"), ids=" ".join)
def test_distir_opt(words: list[str]):
    options = dict(pairwise(words))
    for spec in parse_pipeline(options.get("-p", "")):
        get_all_passes()[spec.name]().from_spec(spec)
    if "-t" in options:
        assert options["-t"] in get_all_targets()


def test_workarounds_are_where_the_list_says():
    text = (ROOT / "docs/workarounds.md").read_text()
    places = set(re.findall(r"`((?:distir/|pyproject)[\w./]+)`", text))
    assert len(places) > 10
    missing = [place for place in places if not (ROOT / place).is_file()]
    assert not missing
    kernels = (ROOT / "distir/interpreters/kernels.py").read_text()
    for name in re.findall(r"^\| (\w+) .*kernels\.py` \|$", text, re.M):
        assert f'@kernel("onnx.{name}' in kernels, name


@pytest.mark.parametrize("words", commands_of("make"), ids=" ".join)
def test_make(words: list[str]):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(words) <= set(targets)
