"""The commands of the README and of the tour are commands of the tools."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from xdsl.utils.arg_spec import parse_pipeline

from distir.lowering import get_all_targets
from distir.passes import get_all_passes
from distir.tools.cli import argument_parser

ROOT = Path(__file__).parents[2]
README, TOUR = (ROOT / name for name in ("README.md", "docs/tour.md"))
COMMANDS = [
    shlex.split(line.split(" | ")[0], comments=True)
    for page in (README, TOUR)
    for block in re.findall(
        r"```sh\n(.*?)```", page.read_text().replace("\\\n", " "), re.S
    )
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


SMALLER = {
    "--steps 20": "--steps 4",
    "--steps 30": "--steps 6",
    "--save-every 10": "--save-every 2",
    "--eval-every 10": "--eval-every 2",
    "--warmup 10": "--warmup 2",
    "--measure 10": "--measure 2",
    "--auto --explain": "--auto --explain --time-limit 30",
    "calibrate -o": "calibrate --rounds 1 --tolerance 10 -o",
}
"""What is made smaller where the tour is run; nothing is left out."""


@pytest.mark.slow
def test_the_tour_runs_from_top_to_bottom(tmp_path: Path):
    """
    Every line of the tour's blocks, in order, 80 columns wide, in a folder that stands for
    that of the repository: from the one that puts the tools on the path on.
    """
    text = re.sub(r" \\\n *", " ", TOUR.read_text())
    lines = [
        line.split("  #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in block.splitlines()
        if not line.startswith("# ")
    ]
    assert lines.pop(0) == ". .venv/bin/activate"  # as PATH is below
    tools = ("distir", "distir-opt", "python")
    assert len(lines) > 40 and all(line.split()[0] in tools for line in lines)
    made = " tour && cd tour"
    assert lines[0].endswith(made) and not any(made in line for line in lines[1:])
    for large in SMALLER:
        assert any(large in line for line in lines), large
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = os.pathsep.join([folder, environment["PATH"]])
    here = tmp_path
    for line in lines:
        command = line.replace("examples/", f"{ROOT}/examples/")
        for large, small in SMALLER.items():
            command = command.replace(large, small)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stdout[-500:], done.stderr[-2000:])
        here = tmp_path / "tour"
        tables = [text for text in done.stdout.splitlines() if "─" in text]
        assert all(len(text) <= 80 for text in tables), (line, done.stdout)


def test_workarounds_are_where_the_list_says():
    text = (ROOT / "docs/workarounds.md").read_text()
    places = set(re.findall(r"`((?:distir/|pyproject)[\w./]+)`", text))
    assert len(places) > 10
    missing = [place for place in places if not (ROOT / place).is_file()]
    assert not missing
    kernels = re.findall(r"^\| (\w+) .*`(\S+kernels\.py)` \|$", text, re.M)
    assert len(kernels) > 10
    for name, file in kernels:
        assert f'@kernel("onnx.{name}' in (ROOT / file).read_text(), name


@pytest.mark.parametrize("words", commands_of("make"), ids=" ".join)
def test_make(words: list[str]):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(words) <= set(targets)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 120
