"""
Damaged files through the command line: programs, models, clusters, profiles, weights,
inputs, journals, schedules, checkpoints, plans and programs of other compilers. A command either works or says in one paragraph what is
wrong: no traceback, no internal error, no hang, no memory beyond bounds.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path

import numpy as np
from fuzz.damage import mutated_bytes, mutated_text
from fuzz.foreign_texts import foreign
from fuzz.onnx_models import models, mutated_model
from fuzz.scenario import Scenario
from fuzz.stored_files import checkpoints, plans, schedules
from hypothesis import strategies as st
from support.command_line import TWO_LAYERS, Finished, distir, succeed
from support.random_programs import Draw

from distir.hardware import FOLDER

EXAMPLES = 30
"""Of a round."""

FILECHECK = Path(__file__).parent.parent / "filecheck"


def _pipelines() -> list[Scenario]:
    """The programs of the lit tests, each with the passes that it is tested with."""
    found: list[Scenario] = []
    for path in sorted(FILECHECK.glob("*/*.mlir")):
        text = path.read_text()
        runs = re.findall(r"RUN: (?:not )?distir-opt %s ([^|>\n]*)", text)
        for run in runs[:2]:
            arguments = shlex.split(re.sub(r"(^|\s)2$", "", run.strip()))
            if len(text) > 6000 or any("%" in a or "/" in a for a in arguments):
                continue
            if "calibrate" in run or "-t" in arguments:
                continue
            program = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
            found.append(
                Scenario(
                    "passes",
                    "p.mlir",
                    program.encode(),
                    ("p.mlir", *arguments),
                    tool="distir-opt",
                )
            )
    return found


@cache
def scenarios() -> list[list[Scenario]]:
    """All scenarios, those of a kind together."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        return [
            _pipelines(),
            *_made_here(),
            *(f() for f in (checkpoints, plans, schedules, foreign)),
        ]


def _made_here() -> list[list[Scenario]]:
    Path("m.mlir").write_text(TWO_LAYERS)
    step = "build mlp --layers 3 --d-model 8 --batch 8 --training -o step.mlir"
    gpt = "build gpt --layers 1 --d-model 8 --heads 2 --vocab 16 --batch 4 --seq 4 -o gpt.mlir"
    for command in (
        step,
        gpt,
        "distribute m.mlir --cluster cpu -d 2 -t 2 -o d.mlir",
        "distribute step.mlir --cluster cpu -p 2 -k 2 -d 2 --zero 1 -o pipe.mlir",
        "search m.mlir --cluster cpu --world-size 2 --jobs 1 --resume j.jsonl -o best.mlir",
    ):
        succeed(*command.split())
    for index, model in enumerate(models()):
        Path(f"o{index}.onnx").write_bytes(model)
        dims = ["--dim", "batch=4"] if index == 0 else []
        done = distir("import", f"o{index}.onnx", *dims, "-o", f"o{index}.mlir")
        assert done.code == 0 or "operator with a body" in done.errors, done.errors
    np.savez("in.npz", x=np.ones((8, 16), np.float32))
    Path("s.csv").write_text("0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n")
    read = {str(p): p.read_bytes() for p in Path().iterdir()}

    def at(
        name: str,
        commands: Sequence[str],
        *others: str,
        mutate: Callable[[Draw, bytes], bytes] = mutated_text,
        content: bytes | None = None,
    ) -> list[Scenario]:
        """The file damaged, through each of the commands, which call it by name."""
        return [
            Scenario(
                name,
                name,
                read[name] if content is None else content,
                tuple(command.split()),
                mutate,
                {other: read[other] for other in others},
            )
            for command in commands
        ]

    on = "--cluster cpu -o out.mlir"
    weights = "o0.safetensors"
    header_end = 8 + int.from_bytes(read[weights][:8], "little")

    def header(draw: Draw, data: bytes) -> bytes:
        """The header of a safetensors file as a text, or all of it as bytes."""
        if draw(st.booleans()):
            return mutated_bytes(draw, data)
        text = mutated_text(draw, data[8:header_end])
        length = len(text) if draw(st.booleans()) else header_end - 8
        return length.to_bytes(8, "little") + text + data[header_end:]

    found = [
        at(
            "m.mlir",
            [
                f"distribute m.mlir -d 2 -t 2 {on}",
                f"distribute m.mlir -p 2 -k 2 {on}",
                "check m.mlir m.mlir",
                f"search m.mlir --world-size 2 --jobs 1 {on}",
                f"distribute m.mlir -t 2 --shard l0.weight:1=t {on}",
            ],
        ),
        at("gpt.mlir", ["check gpt.mlir gpt.mlir", f"distribute gpt.mlir -t 2 {on}"]),
        at(
            "step.mlir",
            [
                f"distribute step.mlir -d 2 --zero 2 --overlap {on}",
                f"distribute step.mlir -p 2 -k 2 --checkpoint full {on}",
            ],
        ),
        at(
            "d.mlir",
            [
                "check m.mlir d.mlir",
                "simulate d.mlir --memory",
                "lower d.mlir -o package",
            ],
            "m.mlir",
        ),
        at(
            "pipe.mlir",
            [
                "simulate pipe.mlir",
                "check step.mlir pipe.mlir",
                "lower pipe.mlir -o package",
            ],
            "step.mlir",
        ),
        [
            scenario
            for index in range(len(models()))
            for scenario in at(
                f"o{index}.onnx",
                [
                    f"import o{index}.onnx -o out.mlir",
                    f"import o{index}.onnx --dim batch=4 --training --loss mse -o out.mlir",
                ],
                mutate=mutated_model,
            )
        ],
        at(weights, ["check o0.mlir o0.mlir"], "o0.mlir", mutate=header),
        at(
            "in.npz",
            ["check m.mlir m.mlir --inputs in.npz"],
            "m.mlir",
            mutate=mutated_bytes,
        ),
        at(
            "s.csv",
            ["distribute step.mlir -p 2 -k 2 --schedule-file s.csv " + on],
            "step.mlir",
        ),
        at(
            "j.jsonl",
            [f"search m.mlir --world-size 2 --jobs 1 --resume j.jsonl {on}"],
            "m.mlir",
        ),
        at(
            "profile.json",
            ["simulate d.mlir --profile profile.json"],
            "d.mlir",
            content=(FOLDER / "profiles" / "A100.json").read_bytes(),
        ),
        *(
            at(
                f"{cluster}.mlir",
                [
                    f"distribute m.mlir -d 2 --cluster {cluster}.mlir -o out.mlir",
                    f"distribute step.mlir -d 2 --overlap --devices 16 "
                    f"--cluster {cluster}.mlir -o out.mlir",
                ],
                *("m.mlir", "step.mlir"),
                content=(FOLDER / f"{cluster}.mlir").read_bytes(),
            )
            for cluster in ("dgx2", "dgx-a100")
        ),
    ]
    return found


def prepare() -> None:
    """Makes the files, with every module loaded that they need."""
    scenarios()


class Complaint(AssertionError):
    """A command ended in another way than commands should."""


def run(scenario: Scenario, content: bytes) -> Finished:
    """Runs the command in an empty folder with that content of the damaged file."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        for other, data in {**scenario.others, scenario.damaged: content}.items():
            Path(other).parent.mkdir(exist_ok=True)
            Path(other).write_bytes(data)
        if scenario.tool == "distir":
            return distir(*scenario.arguments)
        return distir_opt(*scenario.arguments)


def distir_opt(*arguments: str) -> Finished:
    """Runs `distir-opt` in this process."""
    from distir.tools.distir_opt import main

    return distir(*arguments, command=main)


def judge(done: Finished) -> str:
    """What came of a command. Raises Complaint."""
    if done.code not in (0, 1, 2):
        raise Complaint(f"exit code {done.code}: {done.errors}")
    for word in ("internal error", "Traceback", "error: out of memory"):
        if word in done.errors:
            raise Complaint(done.errors)
    if done.code == 0:
        return "worked"
    # Python's own warnings of a script quote its line.
    errors = re.sub(r"(?m)^\S+:\d+: SyntaxWarning: .*\n {2}.*\n", "", done.errors)
    lines = [n for n in errors.splitlines() if not n.startswith("note: ")]
    differs = done.code == 1 and not lines and "DIFFERS" in done.output
    if not differs and not (len(lines) == 1 and lines[0].startswith("error: ")):
        raise Complaint(f"not one paragraph, but: {done.errors!r}")
    return "refused"


def case(draw: Draw) -> list[str]:
    """A command with a damaged file; what came of it."""
    scenario = draw(st.sampled_from(draw(st.sampled_from(scenarios()))))
    content = scenario.mutate(draw, scenario.content)
    try:
        return [judge(run(scenario, content))]
    except BaseException as error:
        error.add_note(f"{scenario.tool} {shlex.join(scenario.arguments)}")
        error.add_note(f"with {scenario.damaged} = {content!r}")
        raise
