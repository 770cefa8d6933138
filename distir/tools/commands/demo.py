"""
`distir demo`: shows the main steps on a model that it builds itself. It needs no
PyTorch, no GPU and no file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments.types import output_folder

_GPT = "--layers 4 --d-model 256 --heads 8 --vocab 512 --batch 4 --seq 64"
_GPT2 = "--layers 12 --d-model 768 --heads 12 --vocab 50257 --batch 8 --seq 1024"

_STEPS = (
    (
        "A small GPT, as a program for one device",
        f"build gpt {_GPT} -o gpt.mlir",
    ),
    (
        "Distribute it over four devices: 2 x data, 2 x tensor",
        "distribute gpt.mlir --cluster dgx2 -d 2 -t 2 -o dist.mlir",
    ),
    (
        "Check that both programs compute the same, on random inputs",
        "check gpt.mlir dist.mlir",
    ),
    (
        "Predict its time and memory, with a timeline",
        "simulate dist.mlir --html report.html",
    ),
    (
        "A training step of GPT-2 (124M parameters)",
        f"build gpt {_GPT2} --dtype bf16 --training -o step.mlir",
    ),
    (
        "Find the fastest way to train it on eight A100s",
        "search step.mlir --cluster dgx-a100 --top 5 --plot front.svg "
        "--save-plan plan.json",
    ),
)
"""The title and the command of each step, whose files are in the demo's folder."""

_WRITTEN = (
    ("dist.mlir", "the distributed program: a layout in the type of each tensor"),
    ("report.html", "the simulated step: timeline, memory, communication"),
    ("front.svg", "throughput over memory of all plans that fit"),
    ("plan.json", "the best plan, for `distir distribute --plan` and PyTorch"),
)
"""The files that are worth a look, with descriptions."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        dest="output",
        type=output_folder,
        default=Path("distir-demo"),
        metavar="FOLDER",
        help="the folder for the files of the demo (default distir-demo)",
    )


def run(arguments: argparse.Namespace) -> int:
    from contextlib import chdir
    from time import perf_counter

    from rich.console import Console

    from distir.tools.cli import main

    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"The files are written to {folder}; the commands run there.")
    started = perf_counter()
    # A command that is typed by hand runs in the folder, too.
    with chdir(folder):
        for number, (title, command) in enumerate(_STEPS, 1):
            console.print(f"\n[bold]{number}. {title}[/bold]")
            console.print(f"[cyan]$ distir {command}[/cyan]")
            if code := main(command.split()):
                return code
    console.print(f"\nThat took {perf_counter() - started:.0f} s. Look at:")
    for name, what in _WRITTEN:
        console.print(f"  {folder / name}: {what}")
    console.print(_next_step(folder))
    return 0


def _next_step(folder: Path) -> str:
    """Returns a sentence that recommends a next command, with or without PyTorch."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return (
            "PyTorch is not installed. With it (pip install 'distir\\[torch]'), "
            "`distir run` starts\nthe program on processes of this machine, and "
            "`distir import` reads your models."
        )
    return (
        f"Next: distir run {folder / 'dist.mlir'} --backend gloo starts four processes "
        "that run it;\n`distir import` reads your models."
    )
