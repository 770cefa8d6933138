"""
Reference implementations of the `train` dialect, and the costs of its ops, one file per
family.

Importing this package registers them.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
