"""
Decompositions: an op is replaced by several ops, which can split factors that the op
itself cannot.

If a Gemm with a bias were partial over an axis, every device would add the bias.
Decomposed, the partial products are reduced first and the bias is added once. A
cross-entropy needs all classes; its decomposition computes partial numbers per label.
The sharding rule of an op lists the factors that only a decomposition can split
(`Rule.decomposed`). Decompositions are registered by op name:

```python
@decomposition("onnx.Gemm")
def gemm(op: Operation) -> list[Operation] | None: ...
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import Layout, Shard
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.registries import Registry
from distir.sharding.mesh import Mesh
from distir.sharding.rule import inference_of, rule_for

Decomposition = Callable[[Operation], list[Operation] | None]

decomposition = Registry[Decomposition]("distir.sharding.rules")
"""
Registers the decomposition of the ops with the given names. It is a function from an op
to its parts, and returns None for an op whose rule has no factors that need a
decomposition.
"""


named_parts = Registry[Decomposition]("distir.sharding.rules")
"""
Registers, for ops with the given names, the decomposition for users who ask for one. It
is coarser than `decomposition`: its parts have names that users know, such as the sum
in a mean. It returns None for an op that stays as it is.
"""


def decompose(op: Operation) -> list[Operation] | None:
    """
    Returns new, detached ops that compute the same as `op`, an op of the sequential
    form. The new ops can split the factors listed as `decomposed` in the rule of `op`.

    The results of the last new op replace the results of `op`. Returns None if the rule
    has no such factors, or if no decomposition is registered.
    """
    if not rule_for(op).decomposed:
        return None
    function = decomposition.of(op)
    return None if function is None else function(op)


def decompose_by_name(op: Operation) -> list[Operation] | None:
    """
    Returns new, detached ops that replace `op`, an op for which a user requested the
    decomposition. Returns None if `op` has no decomposition.
    """
    function = named_parts.of(op)
    return decompose(op) if function is None else function(op)


def in_scope_of(op: Operation, parts: list[Operation]) -> list[Operation]:
    """
    Sets the module path (scope) of each op in `parts` to the scope of `op`, and returns
    `parts`.
    """
    scope = op.attributes.get(SCOPE)
    if scope is not None:
        for part in parts:
            part.attributes[SCOPE] = scope
    return parts


def discard(parts: Sequence[Operation]) -> None:
    """Erases the detached ops of a decomposition that was only inspected."""
    for part in reversed(parts):
        part.erase()


class PartLayouts(NamedTuple):
    """The layouts of one op of a decomposition, and how its factors are split."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    assignment: Mapping[int, tuple[Shard, ...]]


def layouts_of_parts(
    op: Operation, parts: Sequence[Operation], operands: Sequence[Layout], mesh: Mesh
) -> list[PartLayouts] | None:
    """
    Returns the layouts of each op in `parts`, the decomposition of `op`, if the
    operands of `op` have the layouts `operands`.

    A partial result of one part is reduced before the next parts use it. Returns None
    if a part cannot work on the layouts of its operands.
    """
    known: dict[SSAValue, Layout] = dict(zip(op.operands, operands, strict=True))
    whole = Layout(mesh.name)
    found: list[PartLayouts] = []
    for part in parts:
        given = [known.get(value, whole) for value in part.operands]
        for i, (mine, value) in enumerate(
            zip(op.operands, part.operands, strict=False)
        ):
            # By position, as one value may be two operands with different layouts.
            given[i] = operands[i] if mine is value else given[i]
        inferred = inference_of(rule_for(part), given, mesh)
        if isinstance(inferred, str):
            return None
        found.append(PartLayouts(tuple(given), inferred.results, inferred.assignment))
        for result, layout in zip(part.results, inferred.results, strict=True):
            known[result] = layout.without_partial(layout.partial_axes)
    return found


def equal_before(part: Operation) -> Operation | None:
    """
    Returns an earlier op of the same block that has the name, operands and attributes
    of `part`, or None if there is none. The gradient of a loss, for example, needs
    values that the loss has already computed.
    """
    if not part.operands:
        return None
    for use in part.operands[0].uses:
        other = use.operation
        if (
            other is not part
            and other.name == part.name
            and other.parent is part.parent
            and list(other.operands) == list(part.operands)
            and other.properties == part.properties
            and _own_attributes(other) == _own_attributes(part)
            and other.is_before_in_block(part)
        ):
            return other
    return None


def _own_attributes(op: Operation) -> dict[str, object]:
    return {name: attr for name, attr in op.attributes.items() if name != SCOPE}
