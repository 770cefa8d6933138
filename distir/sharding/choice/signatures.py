"""Which ops are alike for a choice of layouts."""

from __future__ import annotations

from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from distir.dialects.dist import SCOPE
from distir.sharding.choice.candidates import OpLayouts

_SEEN_THROUGH = ("onnx.Constant", "onnx.Identity", "dist.constrain", "dist.reshard")
"""Ops behind which a rule looks for a constant (`constant_of`)."""


class Signatures:
    """
    Gives ops the same number that have the same rule: of one kind, with equal properties
    and types, on values from the same constants, and with the same layouts so far. Layers
    repeat their ops and an optimizer treats all parameters of one shape alike, so that a
    program has far fewer signatures than ops.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kept: list[object] = []
        self._equal: dict[Attribute, int] = {}
        # Hashing a type takes long, so this goes by identity. What has a number is kept,
        # so that nothing else takes its place in memory.
        self._attributes: dict[int, tuple[Attribute, int]] = {}

    def of(self, op: Operation, layouts: OpLayouts | None) -> int:
        """The number of an op with these layouts so far."""
        number = self._number
        key = (
            type(op),
            len(op.operands),
            *[number(value.type) for value in (*op.operands, *op.results)],
            *[_constant(value) for value in op.operands],
            *[(name, number(attr)) for name, attr in op.properties.items()],
            *[(n, number(attr)) for n, attr in op.attributes.items() if n != SCOPE],
            id(layouts),
        )
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._numbers)
            self._kept += [layouts, *[v.owner for v in op.operands]]
        return found

    def _number(self, attribute: Attribute) -> int:
        found = self._attributes.get(id(attribute))
        if found is None:
            number = self._equal.setdefault(attribute, len(self._equal))
            found = self._attributes[id(attribute)] = (attribute, number)
        return found[1]


def _constant(value: SSAValue) -> int | None:
    if isinstance(value, OpResult) and value.owner.name in _SEEN_THROUGH:
        return id(value.owner)
    return None
