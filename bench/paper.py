"""
DistIR's evaluation (section 5 of the paper) on this simulator:

    python bench/paper.py FOLDER [MODEL ...] [--jobs N]

searches the grids and writes the outcomes to FOLDER, a file of JSON lines for each model;
what is there already is not computed again. `make bench` does all of it, compares the best
configurations with the paper's Tables 2 and 3 (`distir_tables.json` in the folder of
published measurements) and writes the section.

World size 16, all d x t x p = 16, one micro-batch without a pipeline and 2 to 128 with one, no
configuration without a sample per micro-batch and device; 16 V100 of 32 GB; f16. MLPs take
a training step of SGD, without f32 copies of the parameters, with each of Table 2's batches
(75 configurations each), GPT-2 does inference with batches of 2^7 to 2^20 (1035 configurations in all). The paper does not say
how long its sequences are; here they have 8 tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from paper_tables import Model, rows, summary, write_figures
from report import cpu_seconds, table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.grid import Result, Space, run
from distir.planning.grid.runner import available_cores
from distir.planning.programs import replace_cluster
from distir.planning.result import from_json

WORLD_SIZE = 16
VOCABULARY = 50257
SEQUENCE = 8


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(first, last + 1))


MODELS = (
    Model("MLP 1B", 16, 8192, _powers(7, 18), target_s=5, paper_minutes="<1"),
    Model("MLP 17B", 64, 16384, _powers(7, 17), target_s=5, paper_minutes="1"),
    Model("MLP 103B", 96, 32768, _powers(7, 10), target_s=5, paper_minutes="2"),
    Model("GPT-2 1.6B", 24, 2048, _powers(7, 20), 16, 60, "35"),
    Model("GPT-2 13B", 40, 5120, _powers(7, 20), 40, 60, "58"),
    Model("GPT-2 175B", 96, 12288, _powers(7, 20), 96, 60, "138"),
)


@dataclass(frozen=True)
class Source:
    """Makes a model's program for a size of the batch, on the paper's machine."""

    model: Model

    def __call__(self, batch: int) -> ModuleOp:
        m = self.model
        if m.trains:
            module = build_mlp(m.layers, m.d_model, batch, "f16")
            DifferentiatePass(loss="mse", optimizer="sgd", master_weights=False).apply(
                Context(), module
            )
        else:
            sizes = m.layers, m.d_model, m.heads, VOCABULARY, batch, SEQUENCE
            module = build_gpt(*sizes, "f16", fused_attention=False)
        replace_cluster(module, load_cluster("dgx2", WORLD_SIZE))
        return module


@dataclass
class Search:
    """The outcomes of a model's grid, and the time that finding them took."""

    model: Model
    outcomes: list[Result]
    wall_s: float
    cpu_s: float


def search(model: Model, folder: Path, jobs: int = 0) -> Search:
    """Searches the rest of a model's grid, and writes the outcomes to `folder`."""
    path = folder / f"{model.file_name}.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    data = [json.loads(line) for line in lines]
    found = Search(
        model,
        [from_json(d) for d in data if "batch" in d],
        sum(d["wall_s"] for d in data if "wall_s" in d),
        sum(d["cpu_s"] for d in data if "cpu_s" in d),
    )
    known = {o.plan for o in found.outcomes}
    space = Space(  # DistIR's programs send each tensor in a message of its own.
        model.batches, trains=model.trains, devices=WORLD_SIZE, buckets=False
    )
    left = [c for c in space.plans() if c not in known]
    if not left:
        return found
    wall, cpu = time.perf_counter(), cpu_seconds()
    with path.open("a", encoding="utf-8") as file:
        for some in run(Source(model), left, jobs):
            found.outcomes += some
            file.writelines(json.dumps(o.to_json()) + "\n" for o in some)
            file.flush()
        took = {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": cpu_seconds() - cpu,
        }
        file.write(json.dumps(took) + "\n")
    found.wall_s += took["wall_s"]
    found.cpu_s += took["cpu_s"]
    return found


def _times(searches: list[Search]) -> str:
    rows: list[list[str]] = []
    for found in searches:
        model, grids = found.model, len(found.model.batches)
        grids = grids if model.trains else 1
        rows.append(
            [
                model.name,
                str(len(found.outcomes) // grids),
                f"{found.cpu_s / grids:.1f} s",
                f"{found.cpu_s / len(found.outcomes) * 1e3:.0f} ms",
                f"{model.target_s:g} s on 2 cores",
                f"{model.paper_minutes} min on 56 cores",
            ]
        )
    head = ["model", "configurations", "CPU time", "of each", "target", "the paper"]
    return table(head, rows)


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    with tempfile.TemporaryDirectory() as name:
        searches = [search(model, Path(name)) for model in MODELS]
    return report(searches)


def report(searches: list[Search]) -> str:
    """Returns the section, from the searches of all models."""
    found = [row for s in searches for row in rows(s.model, s.outcomes)]
    figures = write_figures({s.model: s.outcomes for s in searches})
    doc = (__doc__ or "").split("\n\n")[-1]
    return "\n\n".join(
        [
            "## The paper's evaluation",
            doc.strip(),
            "**Table 1**: how long a search takes (MLPs: one batch).",
            _times(searches),
            summary(found),
            figures,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--jobs", type=int, default=available_cores())
    parser.add_argument("--print", action="store_true", help="print the section")
    arguments = parser.parse_args()
    known = {name: m for m in MODELS for name in (m.name, m.file_name)}
    for name in arguments.models:
        if name not in known:
            parser.error(f"no model {name!r}; choose from {', '.join(known)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    asked = [known[name] for name in arguments.models]
    chosen = [m for m in MODELS if not asked or m in asked]
    searches: list[Search] = []
    for model in chosen:
        searches.append(search(model, arguments.folder, arguments.jobs))
        print(f"{model.name}: {len(searches[-1].outcomes)} configurations", flush=True)
    if arguments.print:
        print(report(searches))


if __name__ == "__main__":
    main()
