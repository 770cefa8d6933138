"""
The program of one device: `project` takes a distributed program and returns the one that a
rank runs; `devices_of` lists the devices.

- `program`: projects the module, function by function;
- `collectives`: projects a collective to local types, with its group.
"""

from distir.transforms.projection.devices import devices_of
from distir.transforms.projection.program import MESH, project

__all__ = ["MESH", "devices_of", "project"]
