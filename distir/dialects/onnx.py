"""
The `onnx` dialect: every operator of the ONNX standard at opset `OPSET`. Ops are
defined from the schemas in the `onnx` package, not from a list written by hand.

Operators of the default domain are named like `onnx.MatMul`. Operators of other domains
of the standard also carry the last part of the domain: `onnx.ml.LabelEncoder`,
`onnx.training.Adam`. Operators with a body (If, Loop, Scan...) are left out, because a
program of DistIR is straight-line code.

```mlir
%y = onnx.Gemm(%x, %w, %b) {transB = 1 : i64, scope = "encoder.0"} : (...) -> (...)
%z = onnx.Clip(%y, none, %max) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
```

An omitted optional input is written `none`. An op has the first n results of its
schema; omitted trailing results do not appear.
"""

from __future__ import annotations

from typing import Any

import onnx.defs
from onnx.defs import OpSchema
from xdsl.ir import Dialect
from xdsl.irdl import (
    AnyAttr,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    traits_def,
)
from xdsl.traits import Pure

from distir.dialects.onnx_ops.inference import check_types
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import (
    ElementType,
    OptionalType,
    SequenceType,
    TensorAttr,
)
from distir.dialects.onnx_ops.versions import DOMAIN_VERSIONS

_DOMAIN_PREFIX = {"": "", "ai.onnx.ml": "ml.", "ai.onnx.preview.training": "training."}

_AttrType = OpSchema.AttrType
RANDOM = frozenset(
    (
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)


class StandardOp(OnnxOp):
    """
    Base of all ONNX operators. Verifies that an op's types agree with ONNX's type
    inference.
    """

    def verify_(self) -> None:
        super().verify_()
        check_types(self)


def _define(schema: OpSchema) -> type[OnnxOp]:
    namespace: dict[str, Any] = {
        "name": f"onnx.{_DOMAIN_PREFIX[schema.domain]}{schema.name}",
        "__doc__": f"ONNX operator {schema.name}-{schema.since_version}.",
        "__module__": __name__,
    }
    for name, attribute in schema.attributes.items():
        define = prop_def if attribute.required else opt_prop_def
        namespace[f"{name}_"] = define(AnyAttr(), prop_name=name)
    if schema.name not in RANDOM:
        namespace["traits"] = traits_def(Pure())
    op_type = irdl_op_definition(type(schema.name, (StandardOp,), namespace))
    op_type.SCHEMA = schema
    return op_type


def _schemas() -> list[OpSchema]:
    """
    Returns the newest schema of each operator at the pinned versions. Deprecated
    operators and operators with bodies are left out.
    """
    names = {
        (s.domain, s.name)
        for s in onnx.defs.get_all_schemas()
        if s.domain in _DOMAIN_PREFIX
    }
    schemas = [
        onnx.defs.get_schema(name, DOMAIN_VERSIONS[domain], domain)
        for domain, name in sorted(names)
    ]
    return [
        s
        for s in schemas
        if not s.deprecated
        and all(a.type != _AttrType.GRAPH for a in s.attributes.values())
    ]


OPERATORS: dict[tuple[str, str], type[OnnxOp]] = {
    (s.domain, s.name): _define(s) for s in _schemas()
}
"""The op class of every operator, by (domain, name)."""


def operator(name: str, domain: str = "") -> type[OnnxOp]:
    """
    Returns the op class of an ONNX operator. Raises KeyError if there is no such
    operator.
    """
    return OPERATORS[domain, name]


Onnx = Dialect(
    "onnx",
    list(OPERATORS.values()),
    [ElementType, SequenceType, OptionalType, TensorAttr],
)
