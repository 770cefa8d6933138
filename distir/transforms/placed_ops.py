"""
Builds ops of distributed programs, with layouts inferred by the sharding rules of the
ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist import Layout, LayoutAttr, layout_of, with_layout
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr, element_type_of_dtype
from distir.program import made_with
from distir.sharding.mesh import Mesh
from distir.sharding.rule import infer, rule_for


class PlacedOps:
    """
    Builds ops on a mesh, with layouts inferred by the sharding rules of the ops. `ops`
    has the built ops in order. ONNX operators get the attributes `labels`.
    """

    def __init__(self, mesh: Mesh, labels: Mapping[str, Attribute] | None = None):
        self.mesh = mesh
        self.labels = dict(labels or {})
        self.ops: list[Operation] = []

    def put(self, op: Operation) -> Sequence[SSAValue]:
        """Adds `op` unchanged and returns its results."""
        self.ops.append(op)
        return op.results

    def add(
        self,
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        **attributes: object,
    ) -> SSAValue:
        """
        Adds the ONNX operator `name` and returns its result. The result has the shape
        `shape` and the element type of the first operand.
        """
        first = operands[0].type
        assert isinstance(first, TensorType)
        plain = TensorType(first.element_type, shape)
        op = operator(name).build_op(operands, [plain], attributes, self.labels)
        return self._placed(op)

    def like(
        self, op: Operation, operands: Sequence[SSAValue], shape: Sequence[int]
    ) -> SSAValue:
        """
        Adds a copy of `op`, which has one result, with the operands `operands`. Returns
        the new result, which has the shape `shape`.
        """
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        plain = TensorType(type_.element_type, shape)
        return self._placed(made_with(op, operands, [plain]))

    def _placed(self, op: Operation) -> SSAValue:
        """
        Adds an op whose result has no layout yet, and returns the result with its
        layout.
        """
        result = op.results[0]
        layouts = [layout_of(v) or Layout(self.mesh.name) for v in op.operands]
        (layout,) = infer(rule_for(op), layouts, self.mesh).results
        assert isinstance(result.type, TensorType)
        Rewriter.replace_value_with_new_type(result, with_layout(result.type, layout))
        return self.put(op)[0]

    def shaped(self, name: str, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """
        Adds the op `name`, a Reshape or Expand, that gives `value` the shape `shape`,
        and returns its result.
        """
        sizes = np.array(shape, dtype=np.int64)
        whole = LayoutAttr(Layout(self.mesh.name))
        type_ = TensorType(element_type_of_dtype(sizes.dtype), sizes.shape, whole)
        (constant,) = self.put(
            operator("Constant").build_op(
                [], [type_], {"value": constant_attr(sizes)}, self.labels
            )
        )
        if name == "Reshape" and 0 in shape:  # else 0 would be the size in the operand
            return self.add(name, [value, constant], shape, allowzero=1)
        return self.add(name, [value, constant], shape)
