"""
Reads and writes schedules in the CSV format of PyTorch's pipelining.

A row has the actions of one rank, with a cell per action, such as `0F0,0F1,0B0`, and an
empty cell where the rank is idle. PyTorch's long form also has cells for communication
(`0SEND_F1`), for the parameters of FSDP (`0UNSHARD`) and for the reduction of
gradients. The reader skips these cells, because DistIR derives this work from the
schedule. The reader turns an overlapped pair, `(0F4;3B2)OVERLAP_F_B`, into its two
actions, one after the other.
"""

from __future__ import annotations

import re

from distir.errors import DistIRError
from distir.pipelining.actions import Action, Phase, PipelineSchedule
from distir.pipelining.check import check_schedule

_ACTION = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")
_DERIVED = re.compile(
    r"[0-9]+((SEND|RECV)_[FB][0-9]+|(UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*)"
)


def write_csv(schedule: PipelineSchedule) -> str:
    """Returns the schedule as CSV text, without idle cells."""
    return "".join(",".join(map(str, row)) + "\n" for row in schedule.actions)


def read_csv(text: str) -> PipelineSchedule:
    """
    Returns the schedule that the CSV text `text` describes. Raises DistIRError for a
    cell that is not an action, and for a schedule that `check_schedule` rejects. The
    message gives the row and the column of a wrong cell, counted from 1.
    """
    rows = text.rstrip().splitlines()
    schedule = PipelineSchedule.of(
        [_read_row(row, number) for number, row in enumerate(rows)]
    )
    check_schedule(schedule)
    return schedule


def _read_row(row: str, rank: int) -> list[Action]:
    actions: list[Action] = []
    for column, cell in enumerate(row.split(","), 1):
        pair = _OVERLAP.fullmatch(cell.strip())
        for text in map(str.strip, pair[1].split(";") if pair else [cell]):
            if not text or _DERIVED.fullmatch(text):
                continue
            match = _ACTION.fullmatch(text)
            if match is None:
                raise DistIRError(
                    f"schedule: row {rank + 1} (rank {rank}), column {column}: "
                    f"{text[:40]!r} is no action: write the stage, one of F (forward), B "
                    "(backward), I (its part for the input) and W (for the weights), and "
                    "the micro-batch, like 2F0"
                )
            stage, phase, micro_batch = match.groups()
            actions.append(Action(int(stage), Phase(phase), int(micro_batch)))
    return actions
