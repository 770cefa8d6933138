"""
The actions of the ops of the `schedule` dialect, which are registered when this package is
imported.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
