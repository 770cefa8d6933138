"""
Ids for the ops of one program. Ops have equal ids if a choice of layouts can treat them
alike.

`distir.planning.grid.contents` identifies compiled code across programs.
`distir.planning.graph.tied_ops` finds the ops with equal ids that share their choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from distir.dialects.constants import keeps_value
from distir.dialects.dist import layout_of, with_layout
from distir.dialects.dist_attributes import BUCKET, PLACE, SCOPE
from distir.sharding.rule import Rule, rule_for

_LABELS = (SCOPE, PLACE, BUCKET)
"""
The attributes that tell where an op came from, and with which others it communicates.
They do not affect its rule.
"""


class Signatures:
    """
    Gives ids to ops. Ops that have the same sharding rule share an id: ops of one kind
    with equal properties and types, in which the same operands are constants of equal
    value. Layers repeat their ops, and an optimizer treats all parameters of one shape
    alike, so a program has far fewer ids than ops.

    While an object of this class is in use, calls may be changed to call another
    function; all other ops must keep their properties and types. `meaning` is a
    function from an attribute to the attribute that is compared in its place.
    """

    def __init__(self, meaning: Callable[[Attribute], Attribute] | None = None) -> None:
        self._meaning = meaning
        self._kinds: dict[Operation, int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._rules: dict[int, Rule] = {}
        self._form_of: dict[int, int] = {}
        self._forms: dict[tuple[object, ...], int] = {}
        self._equal: dict[Attribute, int] = {}
        # By identity, as hashing a type is slow. Attributes with a number are kept alive,
        # so that their ids are not reused.
        self._attributes: dict[int, tuple[Attribute, int]] = {}

    def rule(self, op: Operation) -> Rule:
        """Returns the sharding rule of `op`. Ops with the same id share one object."""
        kind = self.of(op)
        if kind not in self._rules:
            self._rules[kind] = rule_for(op)
        return self._rules[kind]

    def of(self, op: Operation) -> int:
        """Returns the id of `op`. Ops with the same sharding rule share an id."""
        found = self._kinds.get(op)
        if found is None:
            number, operands = self._number, tuple(op.operands)
            key = (
                type(op),
                len(operands),
                *op.regions,  # each body by itself: only its text says what it does
                *[number(value.type) for value in (*operands, *op.results)],
                *[self._constant(value) for value in operands],
                *[(name, number(attr)) for name, attr in op.properties.items()],
                *[(n, number(a)) for n, a in op.attributes.items() if n not in _LABELS],
            )
            found = self._numbers.get(key)
            if found is None:
                found = self._numbers[key] = len(self._numbers)
            if type(op) is not CallOp:
                self._kinds[op] = found
        return found

    def form(self, op: Operation) -> int:
        """
        Returns an id that ops share if they are of one kind and have equal types and
        sharding rules. The properties and constants of these ops may differ.
        """
        kind = self.of(op)
        found = self._form_of.get(kind)
        if found is None:
            types = [self._number(v.type) for v in (*op.operands, *op.results)]
            key = type(op), op.name, len(op.operands), *types, self.rule(op).key
            found = self._forms.setdefault(key, len(self._forms))
            self._form_of[kind] = found
        return found

    def _number(self, attribute: Attribute) -> int:
        found = self._attributes.get(id(attribute))
        if found is None:
            meaning = self._meaning(attribute) if self._meaning else attribute
            number = self._equal.setdefault(meaning, len(self._equal))
            found = self._attributes[id(attribute)] = (attribute, number)
        return found[1]

    def _constant(self, value: SSAValue) -> int | None:
        """
        Returns an id for the op that defines `value` if a rule may read a constant from
        it, else None.
        """
        # Not `isinstance`, which is slow where the answer is no.
        if type(value) is not OpResult:
            return None
        op = value.op
        seen = op.name == "onnx.Constant" or keeps_value(op)
        return self.of(op) if seen else None


def on_any_mesh(attribute: Attribute) -> Attribute:
    """
    Returns a type without the name of its mesh, because an op does the same on all
    meshes with equal axes.
    """
    layout = layout_of(attribute)
    if layout is None or not isinstance(attribute, TensorType):
        return attribute
    return with_layout(attribute, replace(layout, mesh=""))
