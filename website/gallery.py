"""The gallery: reports of small programs, which are made while the site is built."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from website.commands import folded, run
from website.drawings import picture
from website.drawings.timelines import trace_panel

PROGRAMS = (
    "distir build gpt --layers 4 --d-model 512 --heads 8 --vocab 4096 --batch 16 --seq 256"
    " --dtype bf16 --training -o gpt.mlir",
    "distir build moe --layers 4 --d-model 256 --heads 4 --experts 8 --vocab 512 --batch 8"
    " --seq 64 --training -o moe.mlir",
    "distir build gpt --layers 2 --d-model 256 --heads 8 --vocab 512 --batch 2 --seq 4096"
    " --training -o long.mlir",
)
"""The commands that make what the reports are of."""


@dataclass(frozen=True)
class Entry:
    """
    A report of the gallery: its `title`, what is to be seen `about` it, the `command` that
    makes it and the `file` that the command writes.
    """

    title: str
    about: str
    command: str
    file: str


ENTRIES = (
    Entry(
        "Data parallelism with ZeRO 3",
        "Parameters are gathered while devices compute; each device has an eighth of the states.",
        "distir simulate gpt.mlir --cluster dgx-a100 -d 8 --zero 3 --overlap --html zero.html",
        "zero.html",
    ),
    Entry(
        "Tensor parallelism",
        "Two all-reduces in each layer and direction, which devices wait for.",
        "distir simulate gpt.mlir --cluster dgx-a100 -t 8 --html tensor.html",
        "tensor.html",
    ),
    Entry(
        "A pipeline with interleaved stages",
        "The timeline shows where the ranks wait, at the beginning and at the end of the step.",
        "distir simulate gpt.mlir --cluster dgx-a100 -p 2 -k 8 --schedule interleaved-1f1b"
        " --chunks 2 --html pipeline.html",
        "pipeline.html",
    ),
    Entry(
        "Recomputation",
        "The same model, with activations that are computed again: less memory, more time.",
        "distir simulate gpt.mlir --cluster dgx-a100 -d 2 --checkpoint full --html recompute.html",
        "recompute.html",
    ),
    Entry(
        "A mixture of experts",
        "Tokens are sent to the devices of their experts, and back.",
        "distir simulate moe.mlir --cluster dgx-a100 -e 4 --html experts.html",
        "experts.html",
    ),
    Entry(
        "Long sequences in parts",
        "Keys and values go round a ring of four devices while these compute.",
        "distir simulate long.mlir --cluster dgx-a100 -c 4 --context ring --html ring.html",
        "ring.html",
    ),
    Entry(
        "A search",
        "Step time and memory of each plan that was tried; the line joins those that no other beats in both.",
        "distir search gpt.mlir --cluster dgx-a100 --world-size 4 --zero 0,1"
        " --checkpoint none,full --micro-batches 4 --jobs 1 --plot front.svg -o best.mlir",
        "front.svg",
    ),
)


def gallery() -> dict[str, str]:
    """
    Runs the commands of the gallery. Returns the text of its page and of its reports by
    their paths in the site. Raises RuntimeError, with what it said, for a command that fails.
    """
    lines = [
        "# Gallery",
        "",
        "Reports of small programs: each picture is a link to its report. This page was made by the",
        "commands that it shows, after these:",
        "",
        *("```sh", *map(folded, PROGRAMS), "```", ""),
    ]
    made: dict[str, str] = {}
    with TemporaryDirectory(prefix="distir-") as folder, contextlib.chdir(folder):
        for command in PROGRAMS:
            run(command)
        for entry in ENTRIES:
            path = image = f"gallery/{entry.file}"
            if entry.file.endswith(".html"):
                printed = run(f"{entry.command} --trace trace.json")
                image = path.replace(".html", ".svg")
                panel = trace_panel(entry.title, Path("trace.json"))
                made[image] = picture([panel])
            else:
                printed = run(entry.command)
            made[path] = Path(entry.file).read_text("utf-8")
            lines += [f"## {entry.title}", "", entry.about, ""]
            lines += [f"[![{entry.title}]({image})]({path})", ""]
            lines += ["```sh", folded(entry.command), "```", ""]
            lines += ["```text", printed, "```", ""]
    return {"gallery.md": "\n".join(lines), **made}
