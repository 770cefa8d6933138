"""
The sharding rules and local forms of ONNX operators and of training steps, one file per
family.

Importing this package registers them. Ops without a rule are replicated.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
