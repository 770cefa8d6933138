"""
Implementations of the `train` dialect for the reference interpreter, and the costs of
its ops, in one file per family of ops.

Importing this package registers all implementations and costs.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
