"""
The PyTorch expressions of ONNX operators, of communication and of training steps, one file
per family; those of `train` ops that are one template stand on their classes (`OpFacts`).

Importing this package registers them.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
