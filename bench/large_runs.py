"""
Published steps of GPTs on hundreds of A100s, beside what the simulator predicts:

    python bench/large_runs.py FOLDER

computes what FOLDER has no results of and prints the section.

Steps on 384 to 3,360 A100s that compute layers again as a whole; the published figures are in
`bench/data/large_runs.json`, with their sources. What each software does: DeepSpeed's ZeRO 3
gathers over the adapter of each device and hides what it can (profile `A100-deepspeed`, whose figure is
fitted to 175B on 1,536; nothing else here is fitted). Megatron-LM has f16 and plain 1F1B
(`A100-megatron`). DeepSpeed's pipelines have bf16 with gradients that each micro-batch adds
to sums in f32 (`--gradient-dtype f32`), and sends that both sides wait for (`--blocking-sends`; `A100-megatron`). Rates are turned
into seconds by the operations that their authors count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measured.clusters import cluster
from measured.training import Model, Parallelism, simulated
from report import cpu_seconds, table

DATA = json.loads(
    (Path(__file__).parent / "data" / "large_runs.json").read_text("utf-8")
)
A100, SEQ = "a100_80gb", 2048
SELENE, JEAN_ZAY = 25e9, 6.25e9
"""Bytes/s of the network for each device, in each direction."""


@dataclass(frozen=True)
class Run:
    """A published step, its seconds, and how it is simulated."""

    name: str
    model: Model
    batch: int
    parallelism: Parallelism
    profile: str
    seconds: float
    network: float = SELENE

    def predict(self) -> float:
        """Returns the simulated seconds of the step."""
        on = cluster(A100, self.parallelism.devices, network=self.network)
        how = self.parallelism
        return simulated(self.model, self.batch, how, on, self.profile).step_time_s


def _seconds(model: Model, batch: int, devices: int, tflops: float) -> float:
    """Returns the seconds of a step from a rate in the operations of SC'21's appendix."""
    tokens, h, layers = batch * model.seq, model.d_model, model.layers
    flops = 96 * tokens * layers * h * h
    flops *= 1 + model.seq / (6 * h) + model.vocab / (16 * layers * h)
    return flops / (devices * tflops * 1e12)


def _model(size: dict[str, Any], dropout: float) -> Model:
    shape = size["layers"], size["d_model"], size["heads"]
    return Model(*shape, 51200, SEQ, dropout=dropout)


def zero3() -> Iterator[Run]:
    """DeepSpeed's ZeRO 3, Table 2 of SC'21."""
    data = DATA["sc21_table2"]
    for row in data["zero3"]:
        model = _model(data[row["model"]], 0.0)
        devices, batch = row["devices"], row["batch"]
        how = Parallelism(d=devices, zero=3, checkpoint="whole", overlap=True)
        seconds = _seconds(model, batch, devices, row["tflops"])
        yield Run(row["model"], model, batch, how, "A100-deepspeed", seconds)


def megatron() -> Iterator[Run]:
    """Megatron-LM, Table 2 of SC'21."""
    data = DATA["sc21_table2"]
    for row in data["megatron"]:
        model = _model(data[row["model"]], 0.1)
        devices, batch = row["devices"], row["batch"]
        d = devices // (8 * row["p"])
        how = Parallelism(d=d, t=8, p=row["p"], k=batch // d, checkpoint="whole")
        seconds = _seconds(model, batch, devices, row["tflops"])
        yield Run(row["model"], model, batch, how, "A100-megatron", seconds)


def _pipeline(
    name: str, model: Model, batch: int, degrees: tuple[int, ...], seconds: float,
    network: float,
) -> Run:  # fmt: skip
    """Returns a run by DeepSpeed's pipelines, in which sends block."""
    if model.dtype == "bf16":
        model = replace(model, gradient_dtype="f32")
    how = Parallelism(*degrees, checkpoint="whole", blocking_sends=True)
    return Run(name, model, batch, how, "A100-megatron", seconds, network)


def mt_nlg() -> Iterator[Run]:
    """Megatron-Turing NLG 530B, by DeepSpeed and Megatron."""
    model = replace(_model(DATA["sc21_table2"]["530B"], 0.1), dtype="bf16")
    for row in DATA["mt_nlg"]["rows"]:
        d = row["devices"] // 280
        degrees = d, 8, 35, 1920 // d
        yield _pipeline("530B", model, 1920, degrees, row["seconds"], SELENE)


def bloom() -> Iterator[Run]:
    """BLOOM's trials, by DeepSpeed and Megatron."""
    for row in DATA["bloom"]["rows"]:
        t, p = row["t"], row["p"]
        d = 384 // (t * p)
        degrees = d, t, p, 2048 // (d * row["micro_batch"])
        shape = row["layers"], row["d_model"], row["heads"]
        model = Model(*shape, 250880, SEQ, row["dtype"], 0.1)
        name = f"{row['layers']} x {row['d_model']}, {row['dtype']}"
        yield _pipeline(name, model, 2048, degrees, row["seconds"], JEAN_ZAY)


GROUPS: tuple[Callable[[], Iterator[Run]], ...] = (zero3, megatron, mt_nlg, bloom)


def key(run: Run) -> str:
    """Returns what names a run in a folder of results."""
    p = run.parallelism
    return f"{run.profile} {run.batch} x {run.name} D/T/P/K = {p.d}/{p.t}/{p.p}/{p.k}"


def results(folder: Path) -> dict[str, float]:
    """
    Returns the predicted seconds of all runs; those that the folder lacks are computed.
    """
    path = folder / "large_runs.jsonl"
    known: dict[str, float] = {}
    if path.exists():
        known = dict(json.loads(line) for line in path.read_text("utf-8").splitlines())
    for run in (run for group in GROUPS for run in group()):
        if key(run) not in known:
            start = cpu_seconds()
            known[key(run)] = run.predict()
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key(run), known[key(run)]]) + "\n")
            error = known[key(run)] / run.seconds - 1
            spent = cpu_seconds() - start
            print(f"{key(run)}: {error:+.1%}, {spent:.0f} CPU s", flush=True)
    return known


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    with tempfile.TemporaryDirectory() as name:
        return report(Path(name))


def report(folder: Path) -> str:
    """Returns the section, from the results in a folder."""
    found = results(folder)
    doc = (__doc__ or "").split("\n\n")[-1].strip()
    parts = ["### Hundreds of devices", doc]
    for group in GROUPS:
        rows: list[list[str]] = []
        errors: list[float] = []
        for run in group():
            p, seconds = run.parallelism, found[key(run)]
            errors.append(seconds / run.seconds - 1)
            rows.append(
                [
                    run.name,
                    str(p.devices),
                    f"{p.d}/{p.t}/{p.p}/{p.k}",
                    f"{run.seconds:.1f} s",
                    f"{seconds:.1f} s",
                    f"{errors[-1]:+.1%}",
                ]
            )
        mean = sum(map(abs, errors)) / len(errors)
        head = ["run", "devices", "D/T/P/K", "published", "predicted", "error"]
        title = (group.__doc__ or "").rstrip(".")
        parts += [f"**{title}**: mean absolute error {mean:.1%}", table(head, rows)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    print(report(folder))


if __name__ == "__main__":
    main()
