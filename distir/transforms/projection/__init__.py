"""
Derives the program of one device from a distributed program. `project` returns the
program that a rank runs. `devices_of` lists the devices of a program.

- `program`: projects a module, function by function;
- `function`: projects a function, op by op;
- `rank_program`: data that the functions of a device's program share;
- `collectives`: projects a collective to local types, with its group;
- `spmd`: one program for all ranks.
"""

from distir.transforms.projection.function import MESH
from distir.transforms.projection.program import devices_of, project
from distir.transforms.projection.spmd import project_for_all_ranks

__all__ = ["MESH", "devices_of", "project", "project_for_all_ranks"]
