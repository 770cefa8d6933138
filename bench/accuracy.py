"""
How well the simulator predicts published measurements that it was not fitted to:

    python bench/accuracy.py --data DIR [--only mpt] [--having h100] [--sample 40] [--json out.json]

DIR holds the files of measurements (`bench/measured` says what is in each and cites its
source). For each file: the mean absolute relative error and Spearman's rank correlation of
the rows that profiles may be fitted to and of the third that is held out, next to the
baseline, one constant efficiency for the whole file. As steps of a file differ by orders of
magnitude, their order says little; `of peak` is the rank correlation of what they reach of the
devices' peak. Rows of published runs to which no profile was fitted count together as well: the
mean and the median error, and the rank correlation of rates within each kind of hardware.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from math import gcd
from pathlib import Path
from typing import Any

from measured import (
    collectives,
    gpt,
    inference,
    kernels,
    megatron,
    mlp,
    mpt,
    multi_node,
    published,
)
from measured.rows import Row

from distir.interpreters.simulator import Simulation
from distir.interpreters.simulator.reports.compared_runs import (
    RECORD,
    ComparedRuns,
    parallelism_of,
    record,
    uses_float8,
)
from distir.planning.plans.rank_correlation import rank_correlation

LOADERS: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "gpt_inference*": inference.load,
    "gpt_single_node*": gpt.load,
    "kernel_efficiency*": kernels.load,
    "megatron_weak_scaling*": megatron.load,
    "mlp_single_gpu*": mlp.load,
    "mpt_fsdp*": mpt.load,
    "multi_node*": multi_node.load,
    "fms_fsdp*": published.load,
    "nanotron_*": published.load,
    "nemo_*": published.load,
    "nccl_allreduce*": collectives.load,
}


FAR = 0.15
"""The relative error from which on `docs/benchmarks.md` gives a row's cause."""


@dataclass
class Scored:
    """A row with its prediction, or what went wrong if there is none."""

    row: Row
    predicted: float = float("nan")
    failure: str = ""
    kind: tuple[str, tuple[str, ...], bool] | None = None
    """Of a training step: its devices, kinds of parallelism, and whether it is in float8."""

    @property
    def error(self) -> float:
        """The relative error."""
        return self.predicted / self.row.measured - 1


def predict(row: Row) -> Scored:
    """Predicts a row, in a worker process."""
    try:
        found = row.predict()
        if not isinstance(found, Simulation):
            return Scored(row, found)
        entry, kinds = found.run.entry, found.run.device_map.hardware.kinds
        kind = kinds[0].name, parallelism_of(entry), uses_float8(entry)
        return Scored(row, found.step_time_s, kind=kind)
    except Exception as error:
        return Scored(row, failure=f"{type(error).__name__}: {error}"[:200])


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Returns the mean absolute relative error."""
    pairs = zip(predicted, measured, strict=True)
    return statistics.fmean(abs(p / m - 1) for p, m in pairs)


def score(scored: Sequence[Scored], constant: float) -> dict[str, float]:
    """Returns the figures of some rows; `constant` is the baseline's efficiency."""
    measured = [s.row.measured for s in scored]
    predicted = [s.predicted for s in scored]
    naive = [s.row.ideal / constant for s in scored]
    return {
        "rows": len(scored),
        "error": mean_error(predicted, measured),
        "bias": statistics.fmean(s.error for s in scored),
        "spearman": rank_correlation(predicted, measured),
        "of_peak": rank_correlation(
            [s.row.ideal / s.predicted for s in scored],
            [s.row.ideal / s.row.measured for s in scored],
        ),
        "baseline_error": mean_error(naive, measured),
        "baseline_spearman": rank_correlation(naive, measured),
    }


def spread(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows in an order in which any first ones are a sample of all."""
    count = len(rows)
    step = next(n for n in range(int(0.618 * count), count + 1) if gcd(n, count) == 1)
    return [rows[i * step % count] for i in range(count)]


def evaluate(rows: Sequence[Row], processes: int) -> list[Scored]:
    """Returns the predictions of all rows."""
    if processes == 1:
        return [predict(row) for row in rows]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(predict, rows, chunksize=4))


def report(name: str, scored: Sequence[Scored]) -> dict[str, Any]:
    """Prints the lines of a file, and returns them as JSON data."""
    good = [s for s in scored if not s.failure]
    for failed in (s for s in scored if s.failure):
        print(
            f"  no prediction for {failed.row.name}: {failed.failure}", file=sys.stderr
        )
    if not good:
        return {"missing": len(scored)}
    fitted = [s for s in good if not s.row.is_held_out] or good
    constant = statistics.median(s.row.ideal / s.row.measured for s in fitted)
    parts = {
        "fitted": fitted,
        "held out": [s for s in good if s.row.is_held_out],
        "all": good,
    }
    figures: dict[str, Any] = {}
    for part, of in parts.items():
        if not of:
            continue
        f = figures[part] = score(of, constant)
        print(
            f"{name:32} {part:9} {f['rows']:5} {f['error']:8.1%} {f['bias']:+8.1%} "
            f"{f['spearman']:9.3f} {f['of_peak']:8.3f} {f['baseline_error']:9.1%} "
            f"{f['baseline_spearman']:9.3f}"
        )
    figures["missing"] = len(scored) - len(good)
    return figures


def unseen(scored: Sequence[Scored]) -> dict[str, float]:
    """Prints the figures of all rows that nothing was fitted to, and returns them."""
    good = [s for s in scored if s.row.hardware and not s.failure]
    if not good:
        return {}
    errors = [abs(s.error) for s in good]
    figures: dict[str, float] = {
        "rows": len(good),
        "mean": statistics.fmean(errors),
        "median": statistics.median(errors),
    }
    for hardware in dict.fromkeys(s.row.hardware for s in good):
        own = [s for s in good if s.row.hardware == hardware]
        if len(own) > 2:
            figures[f"of peak on {hardware}"] = rank_correlation(
                [s.row.ideal / s.predicted for s in own],
                [s.row.ideal / s.row.measured for s in own],
            )
    text = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
    print(f"nothing was fitted to: {text}")
    for s in good:
        if abs(s.error) > FAR:
            print(f"  {s.error:+7.1%} {s.row.name}")
    return figures


def compared(scored: Sequence[Scored]) -> list[ComparedRuns]:
    """
    Returns the errors of training steps that nothing may be fitted to, by devices and kinds
    of parallelism.
    """
    groups: dict[tuple[str, tuple[str, ...], bool], list[Scored]] = {}
    for s in scored:
        if s.kind is not None and s.row.is_held_out and not s.failure:
            groups.setdefault(s.kind, []).append(s)
    return [
        ComparedRuns(
            *kind,
            runs=len(group),
            mean=round(statistics.fmean(abs(s.error) for s in group), 4),
            largest=round(max(abs(s.error) for s in group), 4),
            sources=tuple(dict.fromkeys(s.row.source for s in group)),
        )
        for kind, group in sorted(groups.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, nargs="+", help="folders of the files"
    )
    parser.add_argument(
        "--only", default=[""], nargs="+", help="files whose name holds one of these"
    )
    parser.add_argument("--having", default="", help="rows whose name holds this")
    parser.add_argument("--sample", type=int, help="so many rows of each file")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"write {RECORD.name} for `distir simulate`",
    )
    arguments = parser.parse_args()
    print(
        f"{'file':32} {'part':9} {'rows':>5} {'error':>8} {'bias':>8} {'spearman':>9} "
        f"{'of peak':>8} {'baseline':>9} {'spearman':>9}"
    )
    figures: dict[str, Any] = {}
    every: list[Scored] = []
    for path in sorted(p for folder in arguments.data for p in folder.glob("*.json")):
        loader = next((f for p, f in LOADERS.items() if fnmatch(path.stem, p)), None)
        if loader is None or not any(only in path.stem for only in arguments.only):
            continue
        rows = loader(json.loads(path.read_text(encoding="utf-8")))
        rows = [row for row in rows if arguments.having in row.name]
        if not rows:
            continue
        if arguments.sample is not None:
            rows = spread(rows)[: arguments.sample]
        scored = evaluate(rows, arguments.processes)
        every += scored
        figures[path.stem] = report(path.stem, scored)
        if arguments.rows:
            for s in scored:
                print(
                    f"  {s.error:+7.1%} {s.predicted:11.5g} s, measured "
                    f"{s.row.measured:11.5g} s  {s.row.name}"
                )
    if found := unseen(every):
        figures["nothing fitted"] = found
    if arguments.record:
        RECORD.write_text(record(compared(every)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
