"""
What `auto-parallel` finds, beside the best that others find:

    python bench/auto.py FOLDER [MODEL ...]

judges plans and writes outcomes to FOLDER, files of JSON lines; what is there already is
not computed again. Names are those of models; with none the section is printed.

DistIR's rows are those of the paper's Tables 2 and 3 (`bench/paper.py`): the best point of the grid
of D/T/P/K, and the best plan of `auto-parallel` for the same batch on the same 16 V100, after the
first of its rounds: the same grid, and searched layouts on all meshes of two axes. Rhino's
are the configurations of its Tables 1 and 2 for 8 and 16 GPUs: f32, AdamW, nodes of 8 V100
with NVLink and 100 Gb/s between (`v100-roce`), a global batch of 64 (GPT) and 256 (MoE). The
paper gives neither its sequences, here 1,024 tokens as in Alpa's evaluation of the same
models, nor its vocabulary, here 51,200. Every other layer of its MoE models has experts, and all MLPs
have its D_ffn, which gives 2.40 and 10.2 billion parameters. CPU seconds are those of
`auto-parallel` alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import paper
from hand_plans import HandPlans
from paper_tables import Model, rows
from report import cpu_seconds, table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.frontends.models.basic import build_gpt, build_moe
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.grid import GridPlan, Plan, Result, Simulated
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.programs import replace_cluster
from distir.planning.plans.result import from_json

ROUNDS = 1
"""The rounds of the search for DistIR's rows: the grid and searched layouts."""

SEQUENCE = 1024
VOCABULARY = 51200


@dataclass(frozen=True)
class RhinoModel:
    """A row of Rhino's Tables 1 and 2; without experts it is a GPT."""

    name: str
    layers: int
    d_model: int
    heads: int
    devices: int
    ffn: int
    experts: int = 0

    @property
    def batch(self) -> int:
        """The global batch of its tests with full parallelism."""
        return 256 if self.experts else 64

    @property
    def file_name(self) -> str:
        """The name in files and on the command line."""
        return self.name.lower()

    def program(self, batch: int | None = None, on: str = "v100-roce") -> ModuleOp:
        """
        Returns the training step for a batch, that of the tests with full parallelism by
        default, on one of the paper's platforms (M8 by default).
        """
        sizes = (self.layers, self.d_model, self.heads)
        data = (VOCABULARY, batch or self.batch, SEQUENCE)
        if self.experts:
            module = build_moe(
                *(*sizes, self.experts, *data), ffn=self.ffn, fused_attention=False
            )
        else:
            module = build_gpt(*sizes, *data, fused_attention=False)
        DifferentiatePass().apply(Context(), module)
        replace_cluster(module, load_cluster(on, self.devices))
        return module


RHINO = (
    RhinoModel("GPT-2.7B", 32, 2560, 32, 8, 10240),
    RhinoModel("MoE-16E-2.4B", 16, 1024, 16, 8, 8192, 16),
    RhinoModel("GPT-6.7B", 32, 4096, 32, 16, 16384),
    RhinoModel("MoE-32E-10B", 16, 1536, 16, 16, 12288, 32),
)


@dataclass(frozen=True)
class Compared:
    """A row of the tables: the best plan that others found, and that of `auto-parallel`."""

    name: str
    batch: int
    other: str
    other_s: float
    auto: str
    auto_s: float
    auto_gb: float
    plans: int
    cpu_s: float

    @property
    def gain(self) -> float:
        """The ratio of the throughputs."""
        return self.other_s / self.auto_s


class Journal:
    """The rows in a folder, each computed once."""

    def __init__(self, folder: Path):
        self.path = folder / "auto.jsonl"
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        self.rows = [Compared(**json.loads(line)) for line in lines]

    def row(self, name: str, batch: int, compute: Callable[[], Compared]) -> Compared:
        """
        Returns the row of a model and a batch, which is computed if it is not in the
        folder.
        """
        for row in self.rows:
            if (row.name, row.batch) == (name, batch):
                return row
        row = compute()
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(f"{name}, batch {batch}: {row.gain:.3f} x {row.other}", flush=True)
        return row


def _compare(
    name: str,
    module: ModuleOp,
    cluster: ClusterOp,
    batch: int,
    other: tuple[str, float],
    known: Iterable[Result] = (),
    rounds: int | None = None,
    plans: Path | None = None,
) -> Compared:
    """
    Compares the best plan of others with that of `auto-parallel`. Outcomes in `known` are
    not judged again, nor those in the file `plans`, to which those of each round are added.
    The search is ended after `rounds` rounds, unless it ends before.
    """
    start = cpu_seconds()
    written = _read(plans)

    def on_progress(search: AutoSearch) -> None:
        best = search.best.plan if search.best else "nothing fits"
        print(f"  round {search.rounds}: {best}", flush=True)
        new = [o for c, o in search.results.items() if c not in written]
        written.update({o.plan: o for o in new})
        if plans is not None:
            with plans.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(o.to_json()) + "\n" for o in new)
        if search.rounds == rounds:
            raise KeyboardInterrupt

    options = SearchOptions(buckets=False)  # as in the grid of `bench/paper.py`
    search = auto_search([module], cluster, options, on_progress=on_progress)
    search.results.update({o.plan: o for o in (*known, *written.values())})
    search.run()
    best = search.best
    if best is None:
        raise ValueError(f"{name}: nothing fits")
    if search.interrupted and search.rounds != rounds:
        raise KeyboardInterrupt
    return Compared(
        name,
        batch,
        *other,
        str(best.plan).removeprefix(f"batch={batch} "),
        best.step_time_s,
        best.peak_memory_bytes / 1e9,
        len(search.results),
        cpu_seconds() - start,
    )


def _read(plans: Path | None) -> dict[Plan, Result]:
    if plans is None or not plans.exists():
        return {}
    lines = plans.read_text("utf-8").splitlines()
    found = [from_json(json.loads(line)) for line in lines]
    return {o.plan: o for o in found}


def distir_rows(model: Model, folder: Path, journal: Journal) -> list[Compared]:
    """Returns the rows of a model of the paper's Tables 2 and 3."""
    grid = paper.search(model, folder).outcomes
    found: list[Compared] = []
    for row in rows(model, grid):
        chosen = row.best.plan
        assert isinstance(chosen, GridPlan)

        def compute(chosen: GridPlan = chosen) -> Compared:
            source = paper.Source(model)
            known = [o for o in grid if o.plan.batch == chosen.batch]
            best = Evaluator(source).evaluate(chosen)
            assert isinstance(best, Simulated)
            text = f"D/T/P/K = {chosen.d}/{chosen.t}/{chosen.p}/{chosen.k}"
            other = (text, best.step_time_s)
            cluster = load_cluster("dgx2", paper.WORLD_SIZE)
            module = source(chosen.batch)
            return _compare(
                model.name, module, cluster, chosen.batch, other, known, ROUNDS
            )

        found.append(journal.row(model.name, chosen.batch, compute))
    return found


def rhino_row(model: RhinoModel, folder: Path, journal: Journal) -> Compared:
    """Returns the row of a model of Rhino's tables."""

    def compute() -> Compared:
        module = model.program()
        journal_of_plans = folder / f"hand-{model.file_name}.jsonl"
        plans = HandPlans(module, model.batch, model.experts, journal_of_plans)
        best = plans.best()
        cluster = load_cluster("v100-roce", model.devices)
        other = (str(best.plan), best.seconds)
        file = folder / f"auto-{model.file_name}.jsonl"
        return _compare(model.name, module, cluster, model.batch, other, plans=file)

    return journal.row(model.name, model.batch, compute)


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    with tempfile.TemporaryDirectory() as name:
        return report(Path(name))


def report(folder: Path) -> str:
    """Returns the section, from the outcomes in a folder; missing ones are computed."""
    journal = Journal(folder)
    of_distir = [row for m in paper.MODELS for row in distir_rows(m, folder, journal)]
    of_rhino = [rhino_row(model, folder, journal) for model in RHINO]
    return text(of_distir, of_rhino)


def text(of_distir: Sequence[Compared], of_rhino: Sequence[Compared]) -> str:
    """Returns the section, from its rows."""
    doc = (__doc__ or "").split("\n\n")[-1]
    return "\n\n".join(
        [
            "## Automatic parallelisation",
            doc.strip(),
            f"**DistIR's Tables 2 and 3**: {_summary(of_distir)}",
            _table(of_distir, "best of the grid"),
            f"**Rhino's Tables 1 and 2**: {_summary(of_rhino)}",
            _table(of_rhino, "best by hand"),
        ]
    )


def _summary(found: Sequence[Compared]) -> str:
    gains = [row.gain for row in found]
    count = sum(gain >= 1 - 1e-9 for gain in gains)
    return (
        f"in {count} of {len(found)} rows the plan found is at least as fast; "
        f"{min(gains):.2f} to {max(gains):.2f} times as fast, in the median "
        f"{median(gains):.2f}."
    )


def _table(found: Sequence[Compared], other: str) -> str:
    head = ["model", "batch", other, "ms", "auto-parallel", "ms", "times as fast"]
    head += ["plans judged", "CPU s"]
    lines = [
        [
            row.name,
            str(row.batch),
            row.other,
            f"{row.other_s * 1e3:.4g}",
            row.auto,
            f"{row.auto_s * 1e3:.4g}",
            f"{row.gain:.2f}",
            str(row.plans),
            f"{row.cpu_s:.0f}",
        ]
        for row in found
    ]
    return table(head, lines)


def main() -> None:
    names = [m.file_name for m in (*paper.MODELS, *RHINO)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    arguments = parser.parse_args()
    for name in set(arguments.models) - set(names):
        parser.error(f"there is no model {name}; choose from {', '.join(names)}")
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.models:
        print(report(folder))
        return
    journal = Journal(folder)
    for model in paper.MODELS:
        if model.file_name in arguments.models:
            distir_rows(model, folder, journal)
    for model in RHINO:
        if model.file_name in arguments.models:
            rhino_row(model, folder, journal)


if __name__ == "__main__":
    main()
