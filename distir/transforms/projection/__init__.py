"""
The program of one device: `project` takes a distributed program and gives the one that a
rank runs, `devices_of` says which devices there are.

- `program`: the module, function by function: what lives on the device and what it does;
- `collectives`: a collective on local types, with its group.
"""

from distir.transforms.projection.devices import devices_of
from distir.transforms.projection.program import MESH, project

__all__ = ["MESH", "devices_of", "project"]
