"""
The plans of models of usual sizes: what a search reports, what it writes, and what its saved
plan distributes later take the same time and memory, to the digit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.command_line import distir, succeed

from distir.hardware import load_cluster
from distir.planning.layouts.fitted import FittedSearch
from distir.planning.layouts.fitted_plan import FittedPlan, Step
from distir.planning.plans.saved_plan import SavedPlan
from distir.tools import distir_opt

pytestmark = pytest.mark.slow

GPT = "gpt --d-model 1024 --heads 16 --vocab 50304 --seq 1024 --dtype f16"
LARGE_GPT = (
    "gpt --layers 32 --d-model 4096 --heads 32 --vocab 51200 --seq 1024 --dtype f16"
)
LLAMA = "llama --size 8B --seq 2048 --dtype bf16"
MOE = "moe --layers 8 --d-model 1024 --heads 16 --vocab 32000 --seq 512 --experts 8 --dtype f16"
GRID = "--zero 1,3 --checkpoint none,full --micro-batches 8"
AUTO = "--auto --time-limit {}"


class Case(NamedTuple):
    """A training step, a cluster, bytes of memory of a device, and options of `search`."""

    model: str
    cluster: str
    options: str
    memory: float | None = None


SEARCHES = [
    Case(f"{LARGE_GPT} --batch 64", "dgx2", AUTO.format(120)),
    Case(f"{LARGE_GPT} --batch 16", "dgx2", AUTO.format(120)),
    Case(f"{LARGE_GPT} --batch 64", "dgx2", f"{AUTO.format(120)} --jobs 1"),
    Case(f"{LARGE_GPT} --batch 32", "dgx-a100", AUTO.format(120)),
    Case(f"{LARGE_GPT} --batch 64", "dgx-h100", AUTO.format(120), 48e9),
    Case(f"{LARGE_GPT} --batch 64", "dgx2", f"{GRID} --degrees 4,2,2 --degrees 1,8,2"),
    Case(f"{GPT} --layers 24 --batch 32", "dgx2", AUTO.format(60), 8e9),
    Case(f"{GPT} --layers 24 --batch 32", "v100-roce", AUTO.format(60)),
    Case(f"{GPT} --layers 12 --batch 16", "dgx2", GRID, 4e9),
    Case(f"{LLAMA} --layers 8 --batch 16", "dgx-a100", AUTO.format(60)),
    Case(f"{LLAMA} --layers 8 --batch 16 --tied", "dgx-a100", AUTO.format(60), 40e9),
    Case(f"{LLAMA} --layers 4 --batch 16", "dgx-h100", GRID),
    Case(f"{MOE} --batch 16", "dgx2", AUTO.format(60)),
    Case(f"{MOE} --batch 16", "dgx-a100", f"{GRID} -e 1,2,8", 16e9),
    Case("bert --size large --batch 64 --seq 512", "dgx2", AUTO.format(60)),
    Case("t5 --size base --batch 32 --seq 512", "dgx2", AUTO.format(60), 8e9),
    Case("vit --size large --batch 64", "dgx-a100", AUTO.format(60)),
]
SHARDINGS = [
    Case(f"{LARGE_GPT} --batch 64", "dgx2", 'axes="d=4","t=2" p=2 k=8'),
    Case(f"{LLAMA} --layers 8 --batch 16", "dgx-a100", 'axes="d=4" p=2 k=4'),
    Case(f"{GPT} --layers 24 --batch 32", "dgx2", 'axes="d=4" p=4 k=8', 8e9),
]


def id_of(case: Case) -> str:
    model, batch = case.model.split()[0], re.search(r"--batch (\d+)", case.model)
    assert batch is not None
    memory = "" if case.memory is None else f", {case.memory / 1e9:.0f} GB"
    return f"{model}, batch {batch[1]}, {case.cluster}{memory}, {case.options}"


def built(case: Case, folder: Path) -> tuple[Path, Path]:
    """Builds the training step; returns it and the cluster's file."""
    model, cluster = folder / "model.mlir", folder / "cluster.mlir"
    succeed("build", *case.model.split(), "--training", "-o", model)
    text = str(load_cluster(case.cluster))
    if case.memory is not None:
        text = re.sub(r"(?<!\w)memory = \d+", f"memory = {case.memory:.0f}", text)
    cluster.write_text(text)
    return model, cluster


def simulated(program: Path, *options: str) -> tuple[float, int]:
    """Returns the seconds and the largest peak of the memory of a program."""
    out = program.with_suffix(".simulated.json")
    succeed("simulate", program, "--json", out, *options)
    data: dict[str, Any] = json.loads(out.read_text())
    assert data["fits"]
    return data["step_time_s"], max(data["peak_memory_bytes"])


@pytest.mark.parametrize("case", SEARCHES, ids=id_of)
def test_reported_written_and_replayed(case: Case, tmp_path: Path) -> None:
    model, cluster = built(case, tmp_path)
    best, plan, out, again = (
        tmp_path / name for name in ("best.mlir", "plan.json", "out.json", "again.mlir")
    )
    files = ("-o", best, "--save-plan", plan, "--json", out)
    succeed("search", model, "--cluster", cluster, *case.options.split(), *files)
    (reported,) = json.loads(out.read_text())["best"]
    expected = reported["step_time_s"], reported["peak_memory_bytes"]
    saved = SavedPlan.load(plan)
    assert (saved.time_s, saved.memory_bytes) == expected
    assert simulated(best) == expected
    succeed("distribute", model, "--plan", plan, "-o", again)
    assert simulated(again) == expected


@pytest.mark.parametrize("case", SHARDINGS, ids=id_of)
def test_layouts_with_stages(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages are searched too; the step that the search judged is the one written."""
    model, cluster = built(case, tmp_path)
    judged: list[Step] = []
    check = FittedSearch.check

    def noted(self: FittedSearch, plan: FittedPlan) -> None:
        judged.append(plan.step)
        check(self, plan)

    monkeypatch.setattr(FittedSearch, "check", noted)
    written = tmp_path / "written.mlir"
    options = f'{case.options} stages="search" cluster="{cluster}" time_limit=60'
    passes = f"search-sharding{{{options}}}"
    done = distir(model, "-p", passes, "-o", written, command=distir_opt.main)
    assert done.code == 0, done.errors
    (step,) = judged
    # Unlike `simulate`, the pass takes no profile unless it is named.
    assert simulated(written, "--profile", "none") == (step.seconds, step.peak_bytes)
