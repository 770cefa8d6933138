"""
The gradient rules of ONNX and train ops, one file per family.

Importing this package registers the rules. The docstring of a rule gives its formulas,
where dy is the gradient of the result y.
"""

from distir.dialects.registries import import_families

import_families(__name__, __path__)
