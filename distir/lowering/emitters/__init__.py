"""
The PyTorch expressions of ONNX operators, of communication and, in `train`, of training
steps, one file per family.

Importing this package registers them.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
