"""Options of pipelines, shared by passes and commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distir.errors import DistIRError
from distir.options import option
from distir.pipelining.actions import PipelineSchedule
from distir.pipelining.csv_format import read_csv
from distir.pipelining.registry import build_schedule

SEARCH = "search"
"""
The value of the options `stages` and `stage_meshes` that requests a search for them.
"""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """
    The options for the order in which the ranks of a pipeline run their actions.

    - `p`: number of pipeline ranks;
    - `schedule`: `gpipe`, `1f1b` (the default for training), `interleaved-1f1b`,
      `zb-h1`, `interleaved-zero-bubble`, `zbv`, `dualpipev`, `dualpipev-whole`, or `forward` for
      inference;
    - `chunks`: number of stages per rank, by default the smallest number that the
      schedule allows;
    - `schedule_file`: a file with a schedule in PyTorch's CSV format, used in place of
      `schedule` and `chunks`;
    - `blocking_sends`: whether a send occupies sender and receiver (DistIR's
      semantics). Otherwise, devices compute during a send and wait only where the value
      is used;
    - `stage_meshes`: the sizes of the axes of each rank's mesh, such as `d=2,t=2`, if
      the meshes of ranks differ. An axis that is left out has size 1. With `search`,
      the fastest meshes that a search finds, with axis sizes that divide the program's
      sizes.
    """

    p: int = option(
        1,
        "pipeline ranks (default 1)",
    )
    schedule: str = option(
        "",
        "gpipe, 1f1b (default of a training step), interleaved-1f1b, zb-h1, "
        "interleaved-zero-bubble, zbv, dualpipev, dualpipev-whole, or forward (default of inference)",
        metavar="NAME",
    )
    chunks: int | None = option(
        None,
        "pipeline stages per rank (default: the fewest that the schedule can have)",
        metavar="N",
    )
    schedule_file: str = option(
        "",
        "a schedule in the CSV format of PyTorch's pipelining, a line per rank",
        metavar="FILE.csv",
    )
    blocking_sends: bool = option(
        False,
        "devices wait for each other in a send instead of computing meanwhile",
    )
    stage_meshes: tuple[str, ...] = option(
        (),
        "the degrees of each of the -p pipeline ranks, where they are to differ: "
        "d=2,t=2;t=2 has 4 devices for the first and 2 for the second; instead of -d "
        "and -t",
        metavar="d=N,t=N;...",
        separator=";",
    )

    def schedule_of(self, micro_batches: int, trains: bool) -> PipelineSchedule:
        """
        Returns the schedule for `micro_batches` micro-batches. `trains` tells whether
        the schedule is for a training step or for inference. Raises DistIRError if the
        options contradict each other, or if the schedule does not exist or cannot be
        read.
        """
        if not self.schedule_file:
            name = self.schedule or ("1f1b" if trains else "forward")
            return build_schedule(name, self.p, micro_batches, self.chunks)
        if self.schedule or self.chunks is not None:
            raise DistIRError(
                f"pipeline: the schedule comes from {self.schedule_file}, which says "
                f"the order and the stages of each rank; leave out "
                f"{'the name of a schedule' if self.schedule else 'chunks'}"
            )
        try:
            return read_csv(Path(self.schedule_file).read_text("utf-8"))
        except UnicodeDecodeError as error:
            raise DistIRError(
                f"pipeline: {self.schedule_file} is not text in UTF-8; a schedule is a file "
                f"in the CSV format of PyTorch's pipelining, a line per rank"
            ) from error
        except OSError as error:
            raise DistIRError(
                f"pipeline: cannot read the schedule {self.schedule_file}: "
                f"{error.strerror}"
            ) from error

    def forward_chunks(self, micro_batches: int) -> int | None:
        """
        Returns the number of chunks with which the schedule `forward` has the same
        stages on the same ranks as this training schedule. Returns None if no number of
        chunks has this effect, as for `zbv`. Raises DistIRError if the options
        contradict each other, or if the schedule does not exist or cannot be read.
        """
        schedule = self.schedule_of(micro_batches, True)
        ranks, count = schedule.ranks, schedule.stages
        if any(schedule.stage_rank(stage) != stage % ranks for stage in range(count)):
            return None
        return count // ranks

    def stage_shapes(self) -> list[dict[str, int]]:
        """
        Returns the sizes of the axes of each rank's mesh. The list is empty if all
        ranks have the program's mesh, or if a search will choose the meshes. Raises
        DistIRError for malformed meshes, or if the number of meshes is not the number
        of ranks.
        """
        if self.stage_meshes == (SEARCH,):
            return []
        if self.stage_meshes and len(self.stage_meshes) != self.p:
            raise DistIRError(
                f"pipeline: stage_meshes has {len(self.stage_meshes)} meshes, but the "
                f"pipeline has {self.p} ranks; give one for each rank (-p)"
            )
        shapes: list[dict[str, int]] = []
        for text in self.stage_meshes:
            axes = axes_of(text.split(","), "pipeline: stage_meshes")
            shapes.append(dict(axes))
            if len(axes) > len(shapes[-1]) or 0 in shapes[-1].values():
                raise DistIRError(
                    f"pipeline: stage_meshes has a mesh {text!r}; give each of its axes one "
                    f"size, of 1 or more"
                )
        return shapes


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(ScheduleOptions):
    """
    The options of a pipeline, or of gradient accumulation, for a program that is not
    divided yet.

    - `k`: number of micro-batches; with p = 1 the gradients of the micro-batches are
      accumulated on one rank;
    - `stages`: the ops at which stages begin, as the pass `pipeline` documents; with
      `search`, the stages that the pass `search-stages` finds.
    """

    k: int = option(
        1,
        "micro-batches that a batch is split into (default 1); with one pipeline rank "
        "they accumulate gradients",
    )
    stages: tuple[str, ...] = option(
        (),
        "the scope that the next pipeline stage begins with, once for each stage but "
        "the first; or `uniform`, equal numbers of layers, or `search`, the fastest "
        "that is found (default: equal work)",
        metavar="SCOPE",
    )

    @property
    def is_pipelined(self) -> bool:
        """Whether there are several pipeline ranks or several micro-batches."""
        return self.p > 1 or self.k > 1

    def check_pipeline(self, what: str) -> None:
        """
        Raises DistIRError if options of a pipeline are given but p and k are both 1, or
        if k is below 1. `what` is the subject of the error's message.
        """
        asked = [
            option
            for option, given in (
                ("schedule", self.schedule or self.schedule_file),
                ("chunks", self.chunks is not None),
                ("stages", self.stages),
                ("stage_meshes", self.stage_meshes),
            )
            if given
        ]
        if asked and not self.is_pipelined:
            raise DistIRError(
                f"{what}: {' and '.join(asked)} is of a pipeline, but p and k are 1; "
                f"choose a larger p"
            )
        if self.k < 1:
            raise DistIRError(f"{what}: k={self.k} micro-batches; choose 1 or more")


_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>\d+)")


def axes_of(texts: Sequence[str], what: str) -> list[tuple[str, int]]:
    """
    Returns the names and sizes in `texts`, each of the form `NAME=SIZE`. Raises
    DistIRError for a text of any other form; `what` is the name of the pass in the
    message.
    """
    found: list[tuple[str, int]] = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise DistIRError(
                f"{what}: cannot read the axis {text!r}; write NAME=SIZE, for example d=2"
            )
        found.append((match["name"], int(match["size"])))
    return found
