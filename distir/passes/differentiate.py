"""`differentiate`: from a forward program to a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.passes import ModulePass

from distir.dialects.dist import NAME, ROLE
from distir.errors import DistIRError
from distir.gradients.reverse import ReverseMode
from distir.gradients.rule import GradientBuilder, is_differentiable, shape
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    return_op,
    set_argument_attributes,
)

UPDATES = "dist.updates"
"""On a result: the name of the argument that it replaces in the next step."""

LOSSES = ("cross_entropy", "mse", "none")
