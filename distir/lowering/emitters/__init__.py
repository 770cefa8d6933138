"""
The PyTorch expressions of ONNX operators, of communication and of training steps, with
one file per family. `train` ops whose expression is one template have it on their class
(`OpFacts`).

Importing this package registers all emitters.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
