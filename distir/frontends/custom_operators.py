"""
Imports operators of ONNX models that are not in the standard as ops of other packages.

A package registers a function that reads a node of its own domain:

```python
@custom_operator("com.example::Similarity")
def read_similarity(operands: Sequence[SSAValue | None], attributes: Mapping[str, Any]):
    x, y = operands
    ...
    return SimilarityOp.create(operands=[x, y], result_types=[TensorType(...)])
```

The function gets the values of the node's inputs (None for an omitted one) and the
attributes by name, as Python and NumPy values. It returns one op. The results of the op
stand for the node's outputs and must have static shapes. The function raises ValueError
if the node is malformed. docs/extending.md has an example from the model to the running
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from xdsl.ir import Operation, SSAValue
from xdsl.universe import XDSL_UNIVERSE

from distir.dialects.registries import Registry
from distir.system.plugins import installed_universe

if TYPE_CHECKING:
    from onnx import NodeProto

CustomImport = Callable[[Sequence[SSAValue | None], Mapping[str, Any]], Operation]
"""
Makes the op that stands for a node of an ONNX model. It gets the values of the node's
inputs (None for an omitted one) and the attributes by name.
"""

custom_operator: Registry[CustomImport] = Registry("distir.frontends.onnx.train_nodes")
"""
The registry of functions that read custom operators, by `DOMAIN::OPERATOR`. It includes
DistIR's own operators.
"""


def custom_import(node: NodeProto) -> CustomImport | None:
    """
    Returns the registered function that reads `node`. Returns None for a standard
    operator, and for an operator for which no installed package has registered a
    function.
    """
    from distir.dialects.onnx_ops.versions import DOMAIN_VERSIONS
    from distir.frontends.onnx.names import domain_of

    if domain_of(node) in DOMAIN_VERSIONS:
        return None
    _load_packages()
    return custom_operator.get(f"{node.domain}::{node.op_type}")


@cache
def _load_packages() -> None:
    """
    Loads the dialects of all installed packages, so that the packages register their
    custom operators. Skips xDSL's own dialects, because they register no operator and
    loading them takes a second.
    """
    for name, dialect in installed_universe().all_dialects.items():
        if name not in XDSL_UNIVERSE.all_dialects:
            dialect()
