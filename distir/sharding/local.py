"""
Local forms: the ops that compute one device's result of a distributed op.

Most ops stay the same on local shapes. An op whose operands or attributes refer to
global sizes or positions (a reshape's target shape, a vocabulary-split look-up, a mean
over a split dimension) registers a *local form*: a few ops that compute this device's
result. `project` and the reference interpreter use the same local forms, so that
programs run as they were checked.

```python
@local_form("onnx.ReduceMean")
def reduce_mean(context: LocalContext) -> Sequence[Operation]: ...
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.dist import Layout, layout_of
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.registries import Registry
from distir.errors import DistIRError
from distir.program import made_with
from distir.sharding.layout import local_type
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Assignment, Rule, infer, rule_for


@dataclass(frozen=True)
class LocalContext:
    """
    The facts from which the local form of an op, its ops on one device, is built.

    - `op`: the distributed op, with global shapes and layouts in its types;
    - `operands`: its operands on this device; `result_types`: its local result types;
    - `coordinates`: the coordinates of this device on `mesh`;
    - `rule`, `assignment`: the op's sharding rule and the split of each factor.
    """

    op: Operation
    operands: Sequence[SSAValue]
    result_types: Sequence[Attribute]
    mesh: Mesh
    coordinates: Mapping[str, int]
    rule: Rule
    assignment: Assignment

    def axes_of(self, factor: int) -> tuple[str, ...]:
        """Returns the mesh axes that split `factor`, major to minor."""
        return tuple(shard.axis for shard in self.assignment.get(factor, ()))

    def parts_of(self, factor: int) -> int:
        """Returns the number of parts into which `factor` is split."""
        return prod(self.mesh.size(axis) for axis in self.axes_of(factor))

    def coordinate(self, axes: Sequence[str]) -> Operation:
        """
        Returns a new op that gives this device's position along `axes`, as a number of
        type i64. The first axis is the major one. For the position of the device's part
        of a factor, `axes` is `axes_of(factor)`.
        """
        index = 0
        for axis in axes:
            index = index * self.mesh.size(axis) + self.coordinates[axis]
        op = CoordinateOp(axes, index)
        scope = self.op.attributes.get(SCOPE)
        if scope is not None:
            op.attributes[SCOPE] = scope
        return op

    def same_op(self, operands: Sequence[SSAValue] | None = None) -> Operation:
        """
        Returns the op itself with local result types, on `operands` or, if None, on the
        op's local operands.
        """
        given = self.operands if operands is None else operands
        return made_with(self.op, given, self.result_types)


LocalFunction = Callable[[LocalContext], Sequence[Operation]]

local_form = Registry[LocalFunction]("distir.sharding.rules")
"""
Registers the local form of the ops with the given names: a function from a
`LocalContext` to the ops that compute one device's results. The last of these ops has
the results. An op without a local form stays the same op on local types.
"""


def mesh_of_op(op: Operation, meshes: Mapping[str, Mesh]) -> Mesh | None:
    """
    Returns the mesh that the op's operands and results live on, or None for a
    sequential op. Raises DistIRError if that mesh is not in `meshes`.
    """
    for value in (*op.results, *op.operands):
        layout = layout_of(value)
        if layout is not None:
            if layout.mesh not in meshes:
                raise DistIRError(f"{op.name}: there is no device.mesh @{layout.mesh}")
            return meshes[layout.mesh]
    return None


def local_ops(
    op: Operation,
    operands: Sequence[SSAValue],
    meshes: Mapping[str, Mesh],
    coordinates: Mapping[str, int],
) -> Sequence[Operation]:
    """
    Returns new, detached ops that compute the results of a distributed op on the device
    at `coordinates`. The results of the last op replace the results of the distributed
    op.
    """
    mesh = mesh_of_op(op, meshes)
    types = [local_type(r.type, meshes) for r in op.results]
    form = local_form.of(op)
    if mesh is None or form is None:
        return [made_with(op, operands, types)]
    rule = rule_for(op)
    whole = Layout(mesh.name)
    inference = infer(rule, [layout_of(v) or whole for v in op.operands], mesh)
    return form(
        LocalContext(op, operands, types, mesh, coordinates, rule, inference.assignment)
    )


def local_ops_along(
    op: Operation,
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
    mesh: Mesh,
    axis: str,
    rule_of: Callable[[Operation], Rule] = rule_for,
) -> Sequence[Operation]:
    """
    Returns the ops that compute a distributed op's results if only the mesh axis `axis`
    is made local. The axis must be the outermost axis of every split.

    `operands` are local along the axis, and the results have the types `result_types`.
    `rule_of` returns the sharding rule of `op`, for callers that know the rule already.
    A `collective.coordinate` among the returned ops gives the position along the axis.
    """
    form = local_form.of(op)
    if form is None:
        return [made_with(op, operands, result_types)]
    rule = rule_of(op)
    whole = Layout(mesh.name)
    inference = infer(rule, [layout_of(v) or whole for v in op.operands], mesh)
    assignment = {
        factor: own
        for factor, shards in inference.assignment.items()
        if (own := tuple(s for s in shards if s.axis == axis))
    }
    line = Mesh(mesh.name, ((axis, mesh.size(axis)),), tuple(range(mesh.size(axis))))
    context = LocalContext(
        op, operands, result_types, line, {axis: 0}, rule, assignment
    )
    return form(context)
