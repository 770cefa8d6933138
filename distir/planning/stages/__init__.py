"""
The search behind `search-stages`, for the division of a program into pipeline stages.

`costs` asks the simulator what each op takes, `graph` makes of a program the problem that
`distir.solver.stages` solves, `candidates` solves it under several load caps, `judge`
simulates the resulting pipelines, and `search` takes the fastest.
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
    Turns a program into a pipeline, in place, with stages as the option of `pipeline` gives
    them; `search` means those that `search_stages` finds. Raises DistIRError.
    """
    options, stages = with_searched_stages(module, options, stages)
    make_pipeline(module, options, stages)


def with_searched_stages(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> tuple[ScheduleOptions, Sequence[str]]:
    """
    Searches stages and their meshes as far as the options ask for that, and marks the ops
    of the program; returns the options that are left for `pipeline`. Raises DistIRError.
    """
    searched = tuple(stages) == (SEARCH,) and bool(options.stage_meshes)
    if searched or options.stage_meshes == (SEARCH,):
        from distir.planning.stages.meshes import search_stage_meshes

        return search_stage_meshes(module, options, stages), ()
    if tuple(stages) == (SEARCH,):
        # The search brings the simulator and solvers, which take long to import.
        from distir.planning.stages.search import search_stages

        search_stages(module, options)
        return options, ()
    return options, stages
