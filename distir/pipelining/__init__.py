"""
Pipeline schedules as plain data, for the pipeline pass and for users. Schedules do not
depend on programs, meshes or xDSL.

A schedule is a list of actions per rank: `1F0` is the forward pass of stage 1 on
micro-batch 0, `B` a backward pass, and `I` and `W` are the parts of a backward pass for
the input and for the weights.

- `build_schedule` makes the known schedules: GPipe, 1F1B, interleaved 1F1B, ZB-H1,
  interleaved zero bubble, ZBV, DualPipeV, and forward-only;
- `read_csv` and `write_csv` exchange schedules with PyTorch;
- `check_schedule` rejects schedules that lack an action or would deadlock;
- `global_order` merges the ranks' lists into one order;
- `simulate_schedule` computes the time that a schedule takes and its idle time;
- `in_flight_per_stage` computes, for each stage, the number of micro-batches whose
  activations the stage stores.
"""

from distir.pipelining.actions import Action, Phase, PipelineSchedule
from distir.pipelining.check import check_schedule
from distir.pipelining.csv_format import read_csv, write_csv
from distir.pipelining.dependencies import StageEdges, dependencies
from distir.pipelining.options import SEARCH, PipelineOptions, ScheduleOptions
from distir.pipelining.registry import SCHEDULES, ScheduleKind, build_schedule
from distir.pipelining.simulation import (
    ScheduleTimeline,
    global_order,
    global_steps,
    in_flight_per_rank,
    in_flight_per_stage,
    phase_durations,
    simulate_schedule,
)

__all__ = [
    "SCHEDULES",
    "SEARCH",
    "Action",
    "Phase",
    "PipelineOptions",
    "PipelineSchedule",
    "ScheduleKind",
    "ScheduleOptions",
    "ScheduleTimeline",
    "StageEdges",
    "build_schedule",
    "check_schedule",
    "dependencies",
    "global_order",
    "global_steps",
    "in_flight_per_rank",
    "in_flight_per_stage",
    "phase_durations",
    "read_csv",
    "simulate_schedule",
    "write_csv",
]
