"""`distir demo`, `distir doctor`, and the help that newcomers read."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.command_line import distir, succeed

from distir.system import installation
from distir.tools.cli import COMMANDS, GROUPS, argument_parser
from distir.tools.commands import demo


def test_the_commands_of_the_demo_are_commands() -> None:
    parser = argument_parser()
    kinds = [parser.parse_args(line.split()).command for _, line in demo._STEPS]  # pyright: ignore[reportPrivateUsage]
    assert kinds == ["build", "distribute", "check", "simulate", "build", "search"]


def test_each_command_is_in_one_group_of_the_help() -> None:
    text = distir("--help").output
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for name, (_, summary) in COMMANDS.items():
        assert text.count(summary) == 1
        assert f"\n  {name} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_doctor_says_what_is_there() -> None:
    said = succeed("doctor").output
    for name in ("distir", "Python", "GPUs", "xdsl", "onnx", "[torch]", "[jax]"):
        assert f"\n{name} " in f"\n{said}"
    assert f" {metadata.version('xdsl')}\n" in said
    assert said.splitlines()[-1].startswith("- ")


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        ("xdsl", "0.60.0", "0.60.0, but DistIR needs <0.75,>=0.74"),
        ("numpy", None, "not installed"),
    ],
)
def test_what_does_not_fit_is_named(name: str, version: str | None, state: str) -> None:
    def installed(asked: str) -> str:
        if asked != name:
            return metadata.version(asked)
        if version is None:
            raise metadata.PackageNotFoundError(asked)
        return version

    found = installation.examined(installed)
    assert not found.works
    assert installation.Part(name, state) in found.parts
    assert "pip install --upgrade distir" in found.steps[0]
    assert not any("distir demo" in step for step in found.steps)


def test_an_extra_that_is_missing_is_named() -> None:
    def installed(asked: str) -> str:
        if asked in ("torch", "jax"):
            raise metadata.PackageNotFoundError(asked)
        return metadata.version(asked)

    found = installation.examined(installed)
    assert found.works
    assert any("pip install 'distir[torch]'" in step for step in found.steps)
    assert found.steps[-1] == "distir demo shows the main steps"


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA H100, 81559 MiB"] * 2
    monkeypatch.setattr(installation, "gpus", lambda: names)
    found = installation.examined()
    assert installation.Part("GPUs", "2 x NVIDIA H100, 81559 MiB") in found.parts
    assert any("distir calibrate" in step for step in found.steps)


def completions(line: str, folder: Path) -> list[str]:
    """What a shell is told for the line that was typed so far."""
    answers = folder / "answers"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, "-m", "distir.tools.cli"]
    subprocess.run(command, env=os.environ | asked, check=True)
    return [word.strip() for word in answers.read_text().split("\n")]


@pytest.mark.parametrize(
    ("line", "word"),
    [("distir sim", "simulate"), ("distir distribute m.mlir --clus", "--cluster")],
)
def test_shells_complete_arguments(line: str, word: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    assert word in completions(line, tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_code(shell: str) -> None:
    pytest.importorskip("argcomplete")
    assert "_ARGCOMPLETE" in distir("--completion", shell).output
    assert "choose from bash, zsh, fish" in distir("--completion", "csh").errors


def test_a_reader_that_ends_early_is_no_error() -> None:
    """As `distir show dist.mlir | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "distir.tools.cli", "doctor"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
