"""The best configurations that a search found, beside those of the paper's Tables 2 and 3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import DOCUMENT, table

from distir.planning.grid import GridPlan, Plan, Result, Simulated, ranked
from distir.planning.plans.result import simulated
from distir.tools.reports.pareto_plot import write_pareto_plot

CLOSE = 0.95
"""The fraction of the best throughput with which a configuration counts as a tie."""


@dataclass(frozen=True)
class Model:
    """A model of the paper's Table 1; without heads it is an MLP."""

    name: str
    layers: int
    d_model: int
    batches: tuple[int, ...]
    heads: int = 0
    target_s: float = 60
    paper_minutes: str = ""

    @property
    def trains(self) -> bool:
        """MLPs are trained; GPT-2 does inference."""
        return not self.heads

    @property
    def file_name(self) -> str:
        """The name in files and on the command line."""
        return self.name.lower().replace(" ", "-")


@dataclass(frozen=True)
class Published:
    """
    A row of the paper's Tables 2 and 3: the name of the model, the best configuration, and
    how many times as fast it is as pure data, tensor and pipeline parallelism (None: does
    not fit).
    """

    model: str
    best: GridPlan
    factors: tuple[float | None, float | None, float | None]


def published() -> list[Published]:
    """Returns the rows of the paper's tables, from `data/distir.json`."""
    path = Path(__file__).resolve().parent / "data" / "distir.json"
    data = json.loads(path.read_text("utf-8"))
    found: list[Published] = []
    for model, batch, best, *factors in (*data["table2"], *data["table3"]):
        d, t, p, k = map(int, best.split("/"))
        over_d, over_t, over_p = factors
        plan = GridPlan(batch, d=d, t=t, p=p, k=k, buckets=False)  # as in `search`
        found.append(Published(model, plan, (over_d, over_t, over_p)))
    return found


@dataclass(frozen=True)
class Row:
    """A row of the paper's tables: its choice, and ours from the same configurations."""

    model: Model
    published: Published
    paper_outcome: Simulated | None
    best: Simulated
    pure: Mapping[str, Simulated | None]
    """The best of pure data, tensor and pipeline parallelism (K = 128), if one fits."""

    @property
    def paper(self) -> GridPlan:
        """The paper's choice."""
        return self.published.best

    @property
    def same(self) -> bool:
        """Whether d, t, p and k (and the batch, where it is free) are the same."""
        return self.paper == self.best.plan

    @property
    def same_degrees(self) -> bool:
        """Whether d, t and p are the same."""
        return _degrees(self.paper) == _degrees(self.best.plan)

    @property
    def share(self) -> float:
        """
        The throughput of the paper's choice as a fraction of ours; 0 if it does not fit.
        """
        found = self.paper_outcome
        if found is None or not found.fits:
            return 0.0
        return found.throughput_samples_per_s / self.best.throughput_samples_per_s

    @property
    def why(self) -> str:
        """Says what the paper's choice lacks here, if it is another one."""
        found = self.paper_outcome
        if self.same:
            return "the same"
        if found is None:
            return "the paper's cannot be distributed so"
        if not found.fits:
            return f"the paper's needs {found.peak_memory_bytes / 1e9:.3g} GB of 32"
        return f"the paper's has {self.share:.1%} of the throughput"


def rows(model: Model, outcomes: Sequence[Result]) -> list[Row]:
    """Returns the rows of the paper's tables for a model, in their order."""
    found: list[Row] = []
    for given in published():
        if given.model != model.name:
            continue
        paper, batch = given.best, given.best.batch
        # The batch is given in Table 2 and free in Table 3.
        among = [o for o in outcomes if not model.trains or o.plan.batch == batch]
        best = ranked(among)
        if not best:
            raise ValueError(f"nothing fits: {model.name}, batch {batch}")
        same = [o for o in simulated(among) if o.plan == paper]
        found.append(
            Row(
                model,
                given,
                same[0] if same else None,
                best[0],
                {name: _pure(best, name) for name in "dtp"},
            )
        )
    return found


def _pure(best: Sequence[Simulated], axis: str) -> Simulated | None:
    for outcome in best:
        c = outcome.plan
        others = [n for a, n in zip("dtp", _degrees(c), strict=True) if a != axis]
        if others == [1, 1] and (axis != "p" or c.k == 128):
            return outcome
    return None


def _degrees(c: Plan) -> tuple[int, int, int]:
    assert isinstance(c, GridPlan)
    return c.d, c.t, c.p


def _name(c: Plan) -> str:
    assert isinstance(c, GridPlan)
    return f"{c.d}/{c.t}/{c.p}/{c.k}"


def summary(found: Sequence[Row]) -> str:
    """Returns how many rows agree, and all of them as tables, in Markdown."""
    count = len(found)
    close = sum(row.same or row.share >= CLOSE for row in found)
    return "\n\n".join(
        [
            f"**Tables 2 and 3**: of {count} rows, {sum(r.same for r in found)} have the "
            f"paper's D/T/P/K (in Table 3 also its batch), "
            f"{sum(r.same_degrees for r in found)} its D/T/P; in {close} the paper's choice "
            f"is ours or has at least {CLOSE:.0%} of its simulated throughput. The "
            f"factors say how much faster our choice is than pure data, tensor and "
            f"pipeline parallelism (K = 128), simulated here / measured in the paper; "
            f"`-`: does not fit.",
            _table([row for row in found if row.model.trains]),
            _table([row for row in found if not row.model.trains]),
        ]
    )


def _table(found: Sequence[Row]) -> str:
    lines: list[list[str]] = []
    for row in found:
        best = row.best.plan
        factors = [
            f"{_factor(row.best, pure)} / {_published(factor)}"
            for factor, pure in zip(
                row.published.factors, row.pure.values(), strict=True
            )
        ]
        batches = (
            [str(best.batch)]
            if row.model.trains
            else [f"{best.batch} (paper: {row.paper.batch})"]
        )
        lines.append(
            [
                row.model.name,
                *batches,
                _name(best),
                _name(row.paper),
                row.why,
                *factors,
            ]
        )
    head = ["model", "batch", "here", "paper", "agreement", "vs D", "vs T", "vs P"]
    return table(head, lines)


def _factor(best: Simulated, pure: Simulated | None) -> str:
    if pure is None:
        return "-"
    return f"{best.throughput_samples_per_s / pure.throughput_samples_per_s:.1f}"


def _published(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.1f}"


def write_figures(searches: Mapping[Model, Sequence[Result]]) -> str:
    """Draws Figures 5 and 6 beside the document; returns the Markdown that shows them."""
    folder = DOCUMENT.parent / "figures"
    folder.mkdir(exist_ok=True)
    shown: list[str] = []
    for model, outcomes in searches.items():
        path = folder / f"{model.file_name}.svg"
        # The paper draws each MLP with one batch; here it is the middle one of Table 2.
        batch = model.batches[len(model.batches) // 2]
        drawn = [o for o in outcomes if not model.trains or o.plan.batch == batch]
        write_pareto_plot(path, drawn)
        what = f"batch {batch}" if model.trains else "all batches"
        shown.append(f"- [{model.name}, {what}](figures/{path.name})")
    return "\n".join(
        [
            "**Figures 5 and 6**: throughput over peak memory, a dot for each configuration.",
            "",
            *shown,
        ]
    )
