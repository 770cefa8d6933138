"""
The recording that the objects of a schedule script share: ops of the `schedule` dialect
with their lines in the script, and attributes of checked values.
"""

from __future__ import annotations

import sys
from pathlib import Path

from xdsl.builder import Builder
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.dialects.transform import AnyOpType, NamedSequenceOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from distir.dialects.schedule import BY
from distir.errors import DistIRError
from distir.scheduling.knobs import Knob


class Recording:
    """The schedule recorded so far."""

    def __init__(self, name: str):
        self._block = Block(arg_types=[AnyOpType()])
        self.model: SSAValue = self._block.args[0]
        self.model.name_hint = "model"
        self._builder = Builder(InsertPoint.at_end(self._block))
        self.knobs: dict[str, Knob] = {}
        types = [AnyOpType()], list[Attribute]()
        self.sequence = NamedSequenceOp(name, types, Region(self._block))

    def add(self, op: Operation) -> Operation:
        """Adds an op and returns it. The op stores the present line of the script."""
        op.attributes[BY] = StringAttr(caller())
        return self._builder.insert(op)

    def end(self) -> NamedSequenceOp:
        """Ends the recording and returns the whole schedule."""
        self._builder.insert(YieldOp())
        return self.sequence


def caller() -> str:
    """
    Returns the file name and line of the running script as text: the line of the
    innermost call from outside this package.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    folder = Path(__file__).parent
    while Path(frame.f_code.co_filename).parent == folder and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def text_attribute(value: str) -> StringAttr:
    """
    Returns the text `value` as an attribute. Raises DistIRError if `value` has another
    type, because scripts are not type-checked.
    """
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DistIRError(
            f"{caller()}: a name, a pattern or an axis is a text, not of type "
            f"{type(value).__name__}"
        )
    return StringAttr(value)


def integer_attribute(value: int) -> IntegerAttr:
    """
    Returns the integer `value` as an attribute. Raises DistIRError if `value` has
    another type, because scripts are not type-checked.
    """
    if not isinstance(value, int) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DistIRError(
            f"{caller()}: a dimension, a number or a size is an integer, not of type "
            f"{type(value).__name__}"
        )
    return IntegerAttr(value, i64)
