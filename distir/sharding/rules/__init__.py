"""
Sharding rules of ONNX operators and of training ops, one file per family, and their
local forms: the ops of one device.

Importing this package registers the rules. An op without a rule is replicated.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
