"""
The `train` dialect: ops that a training step needs and ONNX lacks, such as gradients of
fused ops and optimizer updates. Each op corresponds to one real kernel.

Each file of `dialects/train_ops/` defines one family of ops. The dialect consists of
the ops in the `OPS` lists of these files. Each op's docstring gives its shapes and
formulas.
"""

from xdsl.ir import Dialect

from distir.dialects import train_ops
from distir.dialects.registries import import_families

_FAMILIES = import_families(train_ops.__name__, train_ops.__path__)

Train = Dialect("train", [op for f in _FAMILIES for op in getattr(f, "OPS", ())], [])
