"""
The program of one device: `project` takes a distributed program and returns the one that a
rank runs; `devices_of` lists the devices.

- `program`: projects the module, function by function; `function`: one of them, op by op;
- `rank_program`: what the functions of a device's program share;
- `collectives`: projects a collective to local types, with its group.
"""

from distir.transforms.projection.function import MESH
from distir.transforms.projection.program import devices_of, project

__all__ = ["MESH", "devices_of", "project"]
