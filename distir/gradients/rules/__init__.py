"""
The gradient rules of ONNX and train ops, one file per family. Importing this package
registers them.
"""

from distir.registries import import_families

import_families(__name__, __path__)
