"""
The functions that apply the ops of the `schedule` dialect. Importing this package
registers them.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
