"""
Sharding rules and local forms of ONNX operators and of training ops, one file per
family.

Importing this package registers them. An op without a rule is replicated.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
