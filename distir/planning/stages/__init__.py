"""
How `search-stages` works: `costs` asks the simulator what each op takes, `graph` makes of a
program the problem that `distir.solver.stages` solves, `candidates` solves it under several
load caps, `judge` simulates the pipelines that come out, and `search` takes the fastest.
"""

from distir.planning.stages.search import make_pipeline_as_asked, search_stages

__all__ = ["make_pipeline_as_asked", "search_stages"]
