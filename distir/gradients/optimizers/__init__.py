"""
The optimizers that `differentiate` can append, one file each. A file defines the states
of a parameter, the ops of a step, and the optimizer's default settings. Importing this
package registers the optimizers.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
