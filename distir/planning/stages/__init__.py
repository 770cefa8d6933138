"""
How `search-stages` works: `costs` asks the simulator what each op takes, `graph` makes of a
program the problem that `distir.solver.stages` solves, `candidates` solves it under several
load caps, `judge` simulates the pipelines that come out, and `search` takes the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from distir.pipelining import SEARCH, ScheduleOptions
from distir.transforms.pipelines.pipeline import make_pipeline


def make_pipeline_as_asked(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> None:
    """
    Turns a program into a pipeline, with stages as `pipeline` takes them: those that
    `search_stages` finds, if they are to be searched for. Raises DistIRError.
    """
    if tuple(stages) == (SEARCH,):
        # The search brings the simulator and solvers, which take long to import.
        from distir.planning.stages.search import search_stages

        search_stages(module, options)
        stages = ()
    make_pipeline(module, options, stages)
