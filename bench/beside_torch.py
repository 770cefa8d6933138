"""
What a training script that moves to `distir.parallelize` gains and loses beside PyTorch's
own wrappers, on gloo ranks of this machine with one thread each.

    python bench/beside_torch.py [--rows 'gpt-2-*' ...] [--write]

Each row of the table is one model on so many ranks under one wrapper:
`DistributedDataParallel`, `fully_shard` of each layer (FSDP2) and `parallelize_module`, with
the same plan of `parallelize` beside it. Both train with fused AdamW. A row is refused
unless both have the losses of plain PyTorch on one process.

- Lines: the lines of `CHANGES` that the script has more than one for one process.
- Start: processor seconds of a rank from the start of Python to the end of the first step,
  the largest of the ranks, with an empty cache and again; the least of several starts.
  Imports, of torch too (and of transformers, for the LLaMA), are part of it. The comparison
  of the import with the module is switched off; what it takes is said apart.
- Step: the median of 7 blocks of steps, in turns in the same processes, until the slowest
  rank is done; the ratio is the median of those of neighbouring blocks. CPU: the same of
  the processor time of all ranks, which other work on the machine disturbs less.
- Peak: the most bytes of live storages on a rank in a step, with parameters, gradients and
  the optimizer's states.

With `--write` the rows that were measured go to `docs/benchmarks.md`, where the others stay.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from report import DOCUMENT, splice, table

NAME = "beside_torch"
SIDES = ("torch", "distir")
ROWS = [
    (kind, ranks, wrapper)
    for kind in ("gpt", "llama")
    for ranks in (2, 4)
    for wrapper in ("DDP", "FSDP2", "parallelize_module")
]
TOLERANCE = 1e-5
"""The largest relative difference of a loss from plain PyTorch's."""

HEAD = [
    *("row", "lines: its, ours", "start, s", "our first", "second", "the check"),
    *("step, ms", "ours", "CPU, ms", "ours", "peak, MB", "ours"),
]


INTRODUCTION = """\
## Beside PyTorch's wrappers

`python bench/beside_torch.py --write`: a training script with `distir.parallelize` beside the same script with
`DistributedDataParallel`, `fully_shard` (FSDP2) and `parallelize_module`, on gloo ranks of this machine with one thread each,
with fused AdamW. The GPT is written as nanoGPT is, the LLaMA is that of transformers; both have 4 layers of width 256, and 2 x 64
tokens on each rank. A row is refused unless both sides have the losses of plain PyTorch (1e-5) in the first steps.

*Lines* change in a script for one process. *Start* is the processor time of a rank from the start of Python to the end of the
first step, imports included, with an empty cache and again; *the check* of the import is left out of it and is said apart. *Step* is
the median of 7 blocks of steps, in turns in the same processes, with the median ratio of neighbouring blocks; *CPU* is the
processor time of all ranks in it, which other work on the machine disturbs less. *Peak* is of live storages on a rank.
Goals: a step, 1.05 of theirs; a first start, 2 of FSDP2's, and a second, 1.2."""


class RowError(Exception):
    """A row could not be measured."""


def spawned(ranks: int, cache: str, *given: str) -> list[dict[str, Any]]:
    """Starts the ranks; returns what each found. Raises RowError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(Path(__file__).with_name("beside_torch_rank.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    command += [str(ranks), "--master-port", str(port), script, *given]
    environment = {
        **{n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"},
        "DISTIR_CACHE": cache,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as agent:
        try:
            output, errors = agent.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(agent.pid, signal.SIGKILL)
            raise RowError("the ranks did not end within 300 s") from None
    lines = [li for li in output.splitlines() if li.startswith("FOUND ")]
    if agent.returncode or not lines:
        raise RowError(f"the ranks failed:\n{errors[-4000:]}")
    return json.loads(lines[0].removeprefix("FOUND "))


def start_of(kind: str, wrapper: str, ranks: int, starts: int) -> dict[str, float]:
    """
    Returns the processor seconds of starts, each the least of several: `torch`, our `first`
    and our `second`. With DDP also `checked`, our first that compares the import with the
    module, which no plan changes.
    """
    kinds = [("torch", "off"), ("first", "off"), ("second", "off")]
    if wrapper == "DDP":
        kinds.append(("checked", "import"))
    found: dict[str, float] = {}
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as cache:
            for name, check in kinds:
                side = "torch" if name == "torch" else "distir"
                folder = f"{cache}/{check}"
                given = (kind, wrapper, "--side", side, "--check", check)
                took = max(each["cpu"] for each in spawned(ranks, folder, *given))
                found[name] = min(took, found.get(name, took))
    return found


def check_losses(found: Sequence[dict[str, Any]], is_split: bool) -> None:
    """
    Raises RowError if a side has other losses than plain PyTorch. `is_split`: the loss of
    the batch is the mean over the ranks; else each rank has it.
    """
    plain = found[0]["losses"]["plain"]
    for side in SIDES:
        parts = [each["losses"][side][: len(plain)] for each in found]
        means = [sum(step) / len(step) for step in zip(*parts, strict=True)]
        for losses in [means] if is_split else parts:
            pairs = zip(losses, plain, strict=True)
            if any(abs(own - exact) > TOLERANCE * abs(exact) for own, exact in pairs):
                raise RowError(f"{side} has the losses {losses}, plain PyTorch {plain}")


def row_of(
    kind: str, ranks: int, wrapper: str, steps: int = 5, starts: int = 2
) -> list[str]:
    """Measures a row of the table. Raises RowError."""
    from beside_torch_models import changes

    with tempfile.TemporaryDirectory() as cache:
        found = spawned(ranks, cache, kind, wrapper, "--steps", str(steps))
    check_losses(found, wrapper != "parallelize_module")
    cells = [f"{kind}, {ranks} ranks, {wrapper}"]
    cells.append(
        ", ".join(str(len(each.splitlines())) for each in changes(wrapper, kind))
    )
    start = start_of(kind, wrapper, ranks, starts)
    theirs, first = start["torch"], start["first"]
    cells.append(f"{theirs:.1f}")
    cells += [f"{own:.1f} ({own / theirs:.2f})" for own in (first, start["second"])]
    cells.append(f"{start['checked'] - first:.1f}" if "checked" in start else "")
    for what, of_ranks in (("seconds", max), ("cpu", sum)):
        blocks = {
            side: [
                of_ranks(b) for b in zip(*(e[what][side] for e in found), strict=True)
            ]
            for side in SIDES
        }
        pairs = zip(blocks["distir"], blocks["torch"], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        own = {side: statistics.median(blocks[side]) * 1e3 for side in SIDES}
        cells += [f"{own['torch']:.0f}", f"{own['distir']:.0f} ({ratio:.2f})"]
    peak = {side: max(e["peaks"][side] for e in found) / 1e6 for side in SIDES}
    ratio = peak["distir"] / peak["torch"]
    return [*cells, f"{peak['torch']:.1f}", f"{peak['distir']:.1f} ({ratio:.2f})"]


def rows_of_page() -> dict[str, list[str]]:
    """Returns the rows that the page has, by their names."""
    text = DOCUMENT.read_text("utf-8")
    if f"<!-- {NAME} -->" not in text:
        return {}
    own = text.split(f"<!-- {NAME} -->", 1)[1].split(f"<!-- end of {NAME} -->", 1)[0]
    rows = [li.strip("|").split("|") for li in own.splitlines() if li.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: row for row in cells if len(row) == len(HEAD)}


def section_of(rows: dict[str, list[str]]) -> str:
    """Returns the section with these rows, by their names, in the order of `ROWS`."""
    names = [f"{kind}, {ranks} ranks, {wrapper}" for kind, ranks, wrapper in ROWS]
    found = [rows[name] for name in names if name in rows]
    return f"{INTRODUCTION}\n\n{table(HEAD, found)}"


def section() -> str:
    """Measures all rows; returns the section of the page."""
    return section_of({row[0]: row for row in (row_of(*row) for row in ROWS)})


def main() -> None:
    """Measures the rows that are asked for, and prints each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        default=["*"],
        help="patterns, such as gpt-2-DDP or *-FSDP2",
    )
    parser.add_argument("--steps", type=int, default=5, help="steps of a block")
    parser.add_argument("--starts", type=int, default=2, help="starts of each kind")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    chosen = [
        row
        for row in ROWS
        if any(fnmatch("-".join(map(str, row)), each) for each in given.rows)
    ]
    if not chosen:
        parser.error("no row has such a name; one is gpt-2-DDP")
    measured: dict[str, list[str]] = {}
    failed = False
    print(table(HEAD, []), flush=True)
    for row in chosen:
        try:
            cells = row_of(*row, given.steps, given.starts)
        except RowError as error:
            print(f"{'-'.join(map(str, row))}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        measured[cells[0]] = cells
        print(table(HEAD, [cells]).splitlines()[-1], flush=True)
    if given.write:
        text = splice(
            DOCUMENT.read_text("utf-8"), NAME, section_of(rows_of_page() | measured)
        )
        DOCUMENT.write_text(text, "utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
