"""
The search behind `search-stages`, which divides a program into pipeline stages.

`costs` finds the simulated seconds of each op. `graph` turns a program into the problem
that `distir.solver.stages` solves. `judge` solves the problem under several load caps
and simulates the resulting pipelines. `search` takes the fastest pipeline. `meshes`
also searches the sizes of the meshes of the stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from distir.pipelining import SEARCH, ScheduleOptions
from distir.transforms.pipelines.pipeline import make_pipeline


def make_pipeline_as_asked(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> dict[str, int]:
    """
    Turns a program into a pipeline, in place, and returns the stage of each argument by
    name. `stages` is the option `stages` of the pass `pipeline`; with the value
    `search`, the stages are searched. Raises DistIRError if the program cannot be
    divided in this way.
    """
    options, stages = with_searched_stages(module, options, stages)
    return make_pipeline(module, options, stages)


def with_searched_stages(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> tuple[ScheduleOptions, Sequence[str]]:
    """
    Searches stages, the meshes of stages, or both, as the options request, and marks
    the program's ops with their stages. Returns the options and stages that `pipeline`
    still has to apply. Raises DistIRError if no division is possible.
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
