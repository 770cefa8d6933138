"""
The optimizers that `differentiate` appends, one file each: the states that a parameter
has, the ops of a step, and the settings that the optimizer has by default. Importing
this package registers them.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
