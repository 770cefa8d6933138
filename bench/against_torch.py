"""
How fast generated programs are beside PyTorch by hand: `python bench/against_torch.py`.

Each row of the table is a way to run a model: forward, a training step with fused AdamW, and
that step on two processes, against DistributedDataParallel, FSDP2, `parallelize_module` and
`torch.distributed.pipelining`. Both sides run in the same processes (gloo, f32, one thread
each), a step each in turns, and must come to the same losses. A ratio is the median of those
of steps that follow each other: less than 1 means that the generated program is faster.

    python bench/against_torch.py --model llama gpt2 --only step --only="-d 2" --samples 15
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from report import table
from torch_by_hand import LEARNING_RATE, MICRO_BATCHES
from torch_models import MODELS, Benched
from xdsl.context import Context

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.importer import import_torch
from distir.hardware import load_cluster
from distir.launch.packages import run_script
from distir.launch.timing import timing_spawner
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.programs import replace_cluster
from distir.program.weights import save_weights


@dataclass(frozen=True)
class Row:
    """
    A way to run a model: `batches` are the batches of one process that a step takes,
    `beside` is the row whose side by hand it is compared with, if not its own. The package may
    be `compiled`.
    """

    rival: str
    options: DistributionOptions = field(default_factory=DistributionOptions)
    batches: int = 1
    needs: str = "build"
    goal: float = 1.0
    compiled: bool = False
    beside: str = ""

    @property
    def processes(self) -> int:
        return self.options.d * self.options.t * self.options.p


ROWS = {
    "forward": Row("eager", goal=0.97),
    "step": Row("eager, fused AdamW"),
    "step --compile": Row("eager, fused AdamW", compiled=True, beside="step"),
    "-d 2": Row("DDP", DistributionOptions(d=2), 2),
    "step, both compiled": Row("torch.compile, fused AdamW", compiled=True),
    "-d 2 --compile": Row(
        "DDP", DistributionOptions(d=2), 2, compiled=True, beside="-d 2"
    ),
    "-d 2 --overlap": Row("DDP", DistributionOptions(d=2, overlap=True), 2),
    "-d 2 --zero 3 --overlap": Row(
        "FSDP2", DistributionOptions(d=2, zero=3, overlap=True), 2
    ),
    "-t 2": Row(
        "parallelize_module", DistributionOptions(t=2), needs="split", goal=0.95
    ),
    "-p 2 -k 4": Row(
        "pipelining, 1F1B", DistributionOptions(p=2, k=MICRO_BATCHES), needs="cut"
    ),
}


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of a row of one model: the ratio of generated to by hand, in wall time and
    in processor time of all ranks; the milliseconds of a step by hand; ATen calls of a step
    on rank 0, by name.
    """

    model: str
    row: str
    wall: float
    cpu: float
    by_hand_ms: float
    generated_calls: dict[str, int]
    by_hand_calls: dict[str, int]


def imported(benched: Benched, row: str, batches: int) -> ImportedModel:
    """
    Returns the sequential program of a row with the model's weights, as `distir import`
    makes it.
    """
    given, _ = benched.inputs_and_labels(batches)
    found = import_torch(benched.module(), (given,))
    module, context = found.module, Context()
    FoldShapesPass().apply(context, module)
    RaisePatternsPass().apply(context, module)
    OutlineRepeatsPass().apply(context, module)
    if row != "forward":
        DifferentiatePass(
            loss="cross_entropy", optimizer="adamw", learning_rate=LEARNING_RATE
        ).apply(context, module)
    return found


def write(found: ImportedModel, row: Row, folder: Path, buckets: bool) -> None:
    """Writes the package of a row, and the weights beside it."""
    module = found.module.clone()
    options = row.options
    if row.processes > 1:
        replace_cluster(module, load_cluster("cpu", row.processes))
        distribute(module, replace(options, buckets=buckets and options.d > 1))
    write_package(module, folder, compiled=row.compiled)
    save_weights(folder / "weights.safetensors", found.weights)


def ratio(times: dict[str, Any], which: int) -> float:
    """Returns the median over turns of generated over by hand, of one of the clocks."""
    pairs = zip(times["generated"], times["by hand"], strict=True)
    return median(mine[which] / theirs[which] for mine, theirs in pairs)


def compare(
    model: str, name: str, arguments: argparse.Namespace, sequential: ImportedModel
) -> Outcome:
    """Writes, runs and times a row. Raises DistIRError if the two sides disagree."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory(prefix="distir-") as place:
        folder = Path(place)
        package = folder / "package"
        write(sequential, row, package, arguments.buckets)
        if arguments.keep:
            kept = Path(arguments.keep) / model / name.replace(" ", "")
            write(sequential, row, kept, arguments.buckets)
        job = {
            "model": model,
            "row": row.beside or name,
            "folder": str(package),
            "processes": row.processes,
            "batches": row.batches,
            "warm_up": 3,
            "samples": arguments.samples,
            "output": str(folder / "out.json"),
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with timing_spawner() as spawner:
            run_script(
                Path(__file__).with_name("against_torch_rank.py"),
                ["--job", str(folder / "job.json")],
                row.processes,
                folder,
                backend=arguments.backend,
                timeout_s=600.0,
                progress=None,
                spawner=spawner,
            )
        outcome = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    times, calls = outcome["times"], outcome["calls"]
    return Outcome(
        model,
        name,
        ratio(times, 0),
        ratio(times, 1),
        median(wall for wall, _ in times["by hand"]) * 1e3,
        calls["generated"],
        calls["by hand"],
    )


def as_table(outcomes: Sequence[Outcome]) -> str:
    """Returns the table in Markdown."""
    head = [
        "model",
        "generated",
        "by hand",
        "generated / by hand",
        "goal",
        "of processor time",
        "ATen calls",
        "by hand",
    ]
    rows = [
        [
            o.model,
            f"`{o.row}`",
            f"{ROWS[o.row].rival}, {o.by_hand_ms:.0f} ms",
            f"{o.wall:.2f}",
            f"{ROWS[o.row].goal:.2f}",
            f"{o.cpu:.2f}",
            str(sum(o.generated_calls.values())),
            str(sum(o.by_hand_calls.values())),
        ]
        for o in outcomes
    ]
    return table(head, rows)


def calls_beside(outcome: Outcome) -> str:
    """
    Returns the operators that the two sides call, those with the largest difference first.
    """
    mine, theirs = outcome.generated_calls, outcome.by_hand_calls
    names = sorted({*mine, *theirs}, key=lambda n: theirs.get(n, 0) - mine.get(n, 0))
    lines = [f"{mine.get(n, 0):6} {theirs.get(n, 0):6}  {n}" for n in names]
    return "\n".join([f"{outcome.model}, {outcome.row}: generated, by hand", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="*", choices=list(MODELS), default=[*MODELS])
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), help="a row; may be repeated"
    )
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), default="gloo", help="cores or GPUs"
    )
    parser.add_argument("--samples", type=int, default=11, help="steps of each side")
    parser.add_argument(
        "--no-buckets",
        dest="buckets",
        action="store_false",
        help="a message for every tensor",
    )
    parser.add_argument("--calls", action="store_true", help="list the ATen calls")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the packages there")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for model in arguments.model:
        known: dict[tuple[bool, int], ImportedModel] = {}
        for name in arguments.only or ROWS:
            row, benched = ROWS[name], MODELS[model]
            if getattr(benched, row.needs) is None:
                continue
            key = (name == "forward", row.batches)
            if key not in known:
                known[key] = imported(benched, name, row.batches)
            try:
                outcomes.append(compare(model, name, arguments, known[key]))
            except DistIRError as error:
                raise SystemExit(f"error: {model}, {name}: {error}") from error
            now = outcomes[-1]
            text = f"{model}, {name}: {now.wall:.2f} ({now.cpu:.2f})"
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
    print(as_table(outcomes))
    if arguments.calls:
        print("\n".join(map(calls_beside, outcomes)))


if __name__ == "__main__":
    main()
