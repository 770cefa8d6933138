"""
The PyTorch expressions of ONNX operators, of communication and of training steps, with
one file per family. A `train` op with a single template as its expression has the
template on its class (`OpFacts`).

Importing this package registers all emitters.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
