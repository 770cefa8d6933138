"""The sharding rules and local forms of the `train` dialect, one file per family."""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
