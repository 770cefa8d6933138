"""
Opaque modules of PyTorch: the import does not trace them, and they run as they are on
each device's parts.

The op names a module of the script that runs the program. The program does not contain
the code of the module, only its declarations: the sharding rule, the work and the
memory.
"""

from __future__ import annotations

import json
from typing import Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, INTEGERS, TrainOp
from distir.dialects.train_ops.checks import check_type


class OpaqueBase(TrainOp):
    """
    Base of the call of an opaque module and of its gradient.

    - `inputs`: the tensors among the module's arguments, followed by the parameters and
      buffers that `tensors` names;
    - `module`: the name under which the script that runs the program knows the module;
    - `tensors`: the names of the parameters and buffers among the inputs;
    - `arguments`: the module's arguments as JSON, unless all of them are positional
      tensors: `{"args": ["*", false], "kwargs": {"mask": "*"}}`, where each "*" stands
      for the next tensor of `inputs`;
    - `trains`: whether the module runs in training mode;
    - `rule`: the sharding rule, in the notation of `distir.sharding.opaque_rule`;
    - `flops`, `workspace`: the number of floating-point operations, and the bytes of
      memory that the module needs while it runs, both as sums of products of the rule's
      factors and numbers;
    - `sent`: the bytes that all devices together send while the module runs, in the
      same notation;
    - `draws`: whether the module draws random numbers;
    - `seed`, `stream`, `counter`, `coordinates`: only for a module that draws random
      numbers, in a training step. Together they seed the module's generator, as for
      `train.dropout`. The counter differs for each step, and the coordinates are the
      positions of the device along the axes that split the op;
    - `axes`, `sizes`: only in the per-rank form of a module that communicates by
      itself: the mesh axes of this communication, and their sizes.
    """

    module = prop_def(StringAttr)
    tensors = opt_prop_def(ArrayAttr[StringAttr])
    arguments = opt_prop_def(StringAttr)
    trains = opt_prop_def(UnitAttr)
    rule = prop_def(StringAttr)
    flops = opt_prop_def(StringAttr)
    workspace = opt_prop_def(StringAttr)
    sent = opt_prop_def(StringAttr)
    draws = opt_prop_def(UnitAttr)
    seed = opt_prop_def(I64)
    stream = opt_prop_def(I64)
    axes = opt_prop_def(ArrayAttr[StringAttr])
    sizes = opt_prop_def(INTEGERS)

    inputs = var_operand_def(TensorType)
    counter = opt_operand_def(TensorType)
    coordinates = var_operand_def(TensorType)

    @property
    def symbol(self) -> str:
        """The name under which the script knows the module."""
        return self.module.data

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names of the parameters and buffers among the inputs."""
        return () if self.tensors is None else tuple(n.data for n in self.tensors.data)

    @property
    def call_arguments(self) -> Any:
        """
        The arguments of the module, as parsed JSON, or None if all of them are
        positional tensors.
        """
        return None if self.arguments is None else json.loads(self.arguments.data)

    @property
    def random_key(self) -> tuple[int, int] | None:
        """
        The seed and the stream of the module's random numbers. The result is None if
        the op has no seed.
        """
        if self.seed is None or self.stream is None:
            return None
        return self.seed.value.data, self.stream.value.data

    @property
    def axis_names(self) -> tuple[str, ...]:
        """
        The mesh axes over which the module communicates; empty unless the op is in
        per-rank form.
        """
        return () if self.axes is None else tuple(a.data for a in self.axes.data)

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The sizes of the mesh axes in `axis_names`, in the same order."""
        return () if self.sizes is None else tuple(map(int, self.sizes.get_values()))

    def declared(self, **changed: Any) -> dict[str, Any]:
        """
        Returns the properties, by name, that the call of a module shares with its
        gradient. `changed` adds or replaces properties.
        """
        names = (
            *("module", "tensors", "arguments", "trains", "draws", "seed", "stream"),
            *("axes", "sizes"),
        )
        found: dict[str, Any] = {n: self.properties.get(n) for n in names}
        return found | changed

    def verify_(self) -> None:
        super().verify_()
        if len(self.tensor_names) > len(self.inputs):
            raise VerifyException(
                f"{self.name} names {len(self.tensor_names)} parameters and buffers of "
                f"{self.symbol!r}, but has {len(self.inputs)} inputs"
            )
        if (self.seed is None) != (self.stream is None):
            raise VerifyException(
                f"{self.name}: seed and stream come together, for a module that draws "
                f"random numbers"
            )
        drawn = [self.stream is not None, self.counter is not None]
        if any(drawn) and not all([*drawn, self.draws is not None]):
            raise VerifyException(
                f"{self.name}: draws, seed, stream and a counter come together, for a "
                f"module that draws random numbers"
            )
        for name, value in (
            ("counter", self.counter),
            *(("a coordinate", c) for c in self.coordinates),
        ):
            if value is not None:
                check_type(self, name, value, TensorType(i64, []))


@irdl_op_definition
class OpaqueOp(OpaqueBase):
    """
    The results of a module that is not traced. `gradient_flops` and
    `gradient_workspace` are the work and the memory of the module's gradient. By
    default, the gradient takes three times the work of the module and the same memory:

    ```mlir
    %y = train.opaque %x, %w {module = "moe", tensors = ["weight"],
      rule = "[b, s, 64], [4, 64] -> [b, s, 64]"} : ... -> tensor<8x16x64xf32>
    ```
    """

    name = "train.opaque"

    gradient_flops = opt_prop_def(StringAttr)
    gradient_workspace = opt_prop_def(StringAttr)
    outputs = var_result_def(TensorType)

    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )
    assembly_format = (
        "$inputs (`counter` $counter^)? (`at` $coordinates^)? attr-dict `:` "
        "type($inputs) (`counter` type($counter)^)? (`at` type($coordinates)^)? `->` "
        "type($outputs)"
    )

    def verify_(self) -> None:
        super().verify_()
        if not self.outputs:
            raise VerifyException(f"{self.name}: a module gives at least one tensor")


@irdl_op_definition
class OpaqueGradOp(OpaqueBase):
    """
    The gradients of the inputs of `train.opaque` at the indices `wrt`. `gradients`
    holds the gradients of the results at the indices `given`. The module runs once
    more, with the same random numbers, and PyTorch differentiates it.
    """

    name = "train.opaque_grad"

    gradients = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    wrt = prop_def(DenseArrayBase.constr(i64))
    given = prop_def(DenseArrayBase.constr(i64))

    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )
    assembly_format = (
        "$gradients `through` $inputs (`counter` $counter^)? (`at` $coordinates^)? "
        "attr-dict `:` type($gradients) `through` type($inputs) (`counter` type($counter)^)? "
        "(`at` type($coordinates)^)? `->` type($outputs)"
    )

    @property
    def wanted(self) -> tuple[int, ...]:
        """The indices of the inputs whose gradients the op returns."""
        return tuple(int(i) for i in self.wrt.get_values())

    @property
    def known(self) -> tuple[int, ...]:
        """The indices of the results whose gradients the op takes."""
        return tuple(int(i) for i in self.given.get_values())

    def verify_(self) -> None:
        super().verify_()
        if len(self.known) != len(self.gradients):
            raise VerifyException(
                f"{self.name}: given lists {len(self.known)} results, but there are "
                f"{len(self.gradients)} gradients"
            )
        if len(self.wanted) != len(self.outputs) or any(
            not 0 <= i < len(self.inputs) for i in self.wanted
        ):
            raise VerifyException(
                f"{self.name}: wrt lists {list(self.wanted)}, for {len(self.inputs)} inputs "
                f"and {len(self.outputs)} results"
            )
        for index, value in zip(self.wanted, self.outputs, strict=True):
            source = self.inputs[index]
            check_type(
                self,
                f"the gradient of input {index}",
                value,
                TensorType(element_type(source), shape_of(source)),
            )


OPS = [OpaqueOp, OpaqueGradOp]
