"""
The `train` dialect: what a training step needs and ONNX lacks, at the granularity of real
kernels: gradients of fused ops and optimizer updates.

Every op is defined in `dialects/train_ops/`, one file per family, whose list `OPS` this
dialect contains; the op's docstring gives shapes and formulas.
"""

from xdsl.ir import Dialect

from distir.dialects import train_ops
from distir.dialects.registries import import_families

_FAMILIES = import_families(train_ops.__name__, train_ops.__path__)

Train = Dialect("train", [op for f in _FAMILIES for op in getattr(f, "OPS", ())], [])
