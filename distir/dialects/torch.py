"""
The `torch` dialect: what PyTorch computes in one call, and what Python holds in one value, in
the program of one rank.

The steps of `lower` make these ops of `onnx`, `train` and `collective` ops, after `project`,
and the target `torch` prints each as one expression. No op holds text of Python: what it
prints follows from its name, its operands and checked properties, so that a file may contain
any of them.

```mlir
%y = torch.linear %x, %w, %b {transposed} : (tensor<2x8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
%saved = torch.pack %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tuple<tensor<4xf32>, tensor<4xf32>>
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    TupleType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import CollectiveOp, MayBeInFlight
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    ReduceScatterOp,
)
from distir.dialects.dist_attributes import ASYNCHRONOUS, SCOPE
from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, INTEGERS, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
    check_type,
)
from distir.dialects.train_ops.convolution import ConvGradOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.dialects.train_ops.optimizers import (
    STEP_SETTINGS,
    AdamFamilyOp,
    AdamOp,
    AdamWOp,
    SgdOp,
    UpdateOp,
)

IN_PLACE = "torch.in_place"
"""The attribute of an op whose result takes the memory of its first operand."""

PRINTABLE = "torch.printable"
"""The attribute of a module of one rank that is to be printed as it is: no step is left."""

NO_GRAPH = "torch.no_graph"
"""
The attribute of a function that was to be a CUDA graph and cannot be captured: the reason,
as text.
"""

_PRINTED = "operands attr-dict `:` functional-type(operands, results)"


class TorchOp(IRDLOperation, OpFacts):
    """Base of the ops whose properties are printed with their attributes."""

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _PRINTED


# Calls of PyTorch


@irdl_op_definition
class LinearOp(TorchOp):
    """
    `F.linear`: the product of `x` `[..., inputs]` with the matrix `weight`, plus the vector
    `bias`. The matrix is `[outputs, inputs]`, as PyTorch has it, or `[inputs, outputs]` if it
    is `transposed`.
    """

    name = "torch.linear"
    IS_FRESH: ClassVar[bool] = True

    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    transposed = opt_prop_def(UnitAttr)
    y = result_def(TensorType)
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        weight: SSAValue,
        bias: SSAValue | None,
        result_type: Attribute,
        *,
        transposed: bool,
    ):
        super().__init__(
            operands=[x, weight, bias],
            result_types=[result_type],
            properties={"transposed": UnitAttr() if transposed else None},
        )

    def verify_(self) -> None:
        matrix = shape_of(self.weight)
        if len(matrix) != 2:
            raise VerifyException(f"{self.name}: the weight is not a matrix")
        outputs, inputs = reversed(matrix) if self.transposed else matrix
        *rows, _ = shape_of(self.x) or (0,)
        check_shape(self, "x", self.x, (*rows, inputs))
        if self.bias is not None:
            check_shape(self, "bias", self.bias, (outputs,))
        check_shape(self, "y", self.y, (*rows, outputs))


@irdl_op_definition
class AddcmulOp(TorchOp):
    """`torch.addcmul`: `base + x * y`, where `x` and `y` may be broadcast to `base`."""

    name = "torch.addcmul"
    IS_FRESH: ClassVar[bool] = True

    base = operand_def(TensorType)
    x = operand_def(TensorType)
    y = operand_def(TensorType)
    sum = result_def(TensorType)
    traits = traits_def(Pure())

    def __init__(
        self, base: SSAValue, x: SSAValue, y: SSAValue, result_type: Attribute
    ):
        super().__init__(operands=[base, x, y], result_types=[result_type])

    def verify_(self) -> None:
        check_float(self, "base", self.base)
        check_shape(self, "sum", self.sum, shape_of(self.base))
        for name, value in (("x", self.x), ("y", self.y), ("sum", self.sum)):
            check_element_type(self, name, value, element_type(self.base))


@irdl_op_definition
class AddLookUpsOp(TorchOp):
    """
    `base` `[rows, ...]` with each slice of `dy` added to the row that its index names; with
    the attribute `torch.in_place`, in the memory of `base`.
    """

    name = "torch.add_look_ups"
    IS_FRESH: ClassVar[bool] = True

    base = operand_def(TensorType)
    dy = operand_def(TensorType)
    indices = operand_def(TensorType)
    sum = result_def(TensorType)

    def __init__(self, base: SSAValue, look_ups: GatherGradOp):
        super().__init__(
            operands=[base, look_ups.dy, look_ups.indices], result_types=[base.type]
        )

    def verify_(self) -> None:
        if self.sum.type != self.base.type:
            raise VerifyException(f"{self.name}: the sum has another type than base")


@irdl_op_definition
class AddIntoOp(TorchOp):
    """Adds `y` to `x`, whose memory is that of the result."""

    name = "torch.add_into"

    x = operand_def(TensorType)
    y = operand_def(TensorType)
    sum = result_def(TensorType)

    def __init__(self, x: SSAValue, y: SSAValue):
        super().__init__(operands=[x, y], result_types=[x.type])

    def verify_(self) -> None:
        if self.sum.type != self.x.type:
            raise VerifyException(f"{self.name}: the sum has another type than x")


@irdl_op_definition
class ConvGradsOp(ConvGradOp):
    """An op with the results of `train.conv_grad_input` and `train.conv_grad_weight`."""

    name = "torch.conv_grad"

    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    dy = operand_def(TensorType)
    dx = result_def(TensorType)
    dweight = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dx": like("x"), "dweight": like("weight")}

    def verify_(self) -> None:
        self._verify(self.x, self.weight, self.dy)
        super().verify_()


# Calls on lists of tensors

_MESSAGES: dict[str, type[CollectiveOp]] = {
    "all_reduce": AllReduceOp,
    "reduce_scatter": ReduceScatterOp,
    "all_gather": AllGatherOp,
}
"""The collectives of which several can be one message, by the name of their kind."""


@irdl_op_definition
class MessageOp(TorchOp):
    """
    Several collectives of one `kind` over one group in one message: `all_reduce`,
    `reduce_scatter` or `all_gather`, with `dist.asynchronous` as they are. `dims` and `runs` have a
    number for each collective that works along a dimension, -1 where there is none; see the
    properties of the same names of collectives for what they and `reduction` mean. With
    `overwrites` the results are arguments of the program, which are the second half of the
    operands.
    """

    name = "torch.message"

    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    axes = prop_def(ArrayAttr[StringAttr])
    kind = prop_def(StringAttr)
    dims = opt_prop_def(INTEGERS)
    runs = opt_prop_def(INTEGERS)
    reduction = opt_prop_def(StringAttr)
    overwrites = opt_prop_def(UnitAttr)
    traits = traits_def(MayBeInFlight())

    def __init__(
        self, bucket: Sequence[CollectiveOp], targets: Sequence[SSAValue] = ()
    ):
        first = bucket[0]
        properties: dict[str, Attribute | None] = {
            "axes": first.axes,
            "kind": StringAttr(first.name.removeprefix("collective.")),
            "reduction": first.reduction,
            "overwrites": UnitAttr() if targets else None,
        }
        if not isinstance(first, AllReduceOp):
            properties["dims"] = _numbers([op.dim for op in bucket])
            properties["runs"] = _numbers([op.run for op in bucket])
        super().__init__(
            operands=[[*(op.source for op in bucket), *targets]],
            result_types=[[op.result.type for op in bucket]],
            properties=properties,
        )
        if first.is_asynchronous:
            self.attributes[ASYNCHRONOUS] = UnitAttr()

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        return _second_half(self, self.overwrites)

    @property
    def dims_and_runs(self) -> tuple[tuple[int | None, int | None], ...] | None:
        """For each collective its dimension and run length; None for those without any."""
        if self.dims is None or self.runs is None:
            return None
        pairs = zip(self.dims.get_values(), self.runs.get_values(), strict=True)
        return tuple((_number(dim), _number(run)) for dim, run in pairs)

    def verify_(self) -> None:
        kind = _MESSAGES.get(self.kind.data)
        if kind is None:
            raise VerifyException(
                f"{self.name}: there are no messages of kind {self.kind.data!r}, only of "
                f"{', '.join(_MESSAGES)}"
            )
        needs = "reduction" in kind.NEEDED, "dim" in kind.NEEDED
        if needs != (self.reduction is not None, self.dims is not None):
            raise VerifyException(
                f"{self.name}: messages of kind {self.kind.data} need "
                f"{'a' if needs[0] else 'no'} reduction and "
                f"{'' if needs[1] else 'no '}dims and runs"
            )
        for numbers in (self.dims, self.runs):
            if needs[1] and (numbers is None or len(numbers) != len(self.outputs)):
                raise VerifyException(
                    f"{self.name}: dims and runs have a number for each result"
                )
        _verify_halves(self, self.overwrites)


@irdl_op_definition
class StateCopiesOp(TorchOp):
    """
    Copies of several arguments of the program to the device, or with `stores` of values into
    arguments, which are the second half of the operands then.
    """

    name = "torch.state_copies"
    IS_FRESH: ClassVar[bool] = True

    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    stores = opt_prop_def(UnitAttr)

    def __init__(self, copies: Sequence[Operation], targets: Sequence[SSAValue]):
        super().__init__(
            operands=[[*(op.operands[0] for op in copies), *targets]],
            result_types=[[op.results[0].type for op in copies]],
            properties={"stores": UnitAttr() if targets else None},
        )
        if SCOPE in copies[0].attributes:
            self.attributes[SCOPE] = copies[0].attributes[SCOPE]

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        return _second_half(self, self.stores)

    def verify_(self) -> None:
        _verify_halves(self, self.stores)


def _second_half(
    op: MessageOp | StateCopiesOp, overwrites: UnitAttr | None
) -> dict[SSAValue, SSAValue]:
    if overwrites is None:
        return {}
    targets = op.inputs[len(op.outputs) :]
    return dict(zip(op.outputs, targets, strict=True))


def _verify_halves(op: MessageOp | StateCopiesOp, overwrites: UnitAttr | None) -> None:
    """Raises VerifyException unless each result has an operand, and one to overwrite."""
    expected = len(op.outputs) * (1 if overwrites is None else 2)
    if not op.outputs or len(op.inputs) != expected:
        raise VerifyException(
            f"{op.name}: {len(op.outputs)} results and {len(op.inputs)} operands, expected "
            f"{expected}"
        )
    for result, argument in _second_half(op, overwrites).items():
        if result.type != argument.type:
            raise VerifyException(
                f"{op.name}: a result has another type than the argument that it overwrites"
            )


def _numbers(found: Sequence[IntegerAttr | None]) -> DenseArrayBase:
    return DenseArrayBase.from_list(
        i64, [-1 if each is None else each.value.data for each in found]
    )


def _number(value: int | float) -> int | None:
    return None if value < 0 else int(value)


OVERWRITTEN, REUSED, KEPT = "overwritten", "reused", "kept"
"""What becomes of the operands that updates replace."""

_UPDATES: dict[str, type[UpdateOp]] = {
    op.name.removeprefix("train."): op for op in (SgdOp, AdamOp, AdamWOp)
}
"""The updates that are calls, by the name of the function."""


@irdl_op_definition
class UpdatesOp(TorchOp):
    """
    Several updates that differ in their tensors alone, by one call of the `function` that is
    named like the `train` op, with these `settings`. `in_place` says of each list of results
    what becomes of the operands that it replaces: `overwritten` are arguments of the program,
    `reused` is memory that nobody else needs, and `kept` is what must stay as it is.

    Operands are `lists` lists of equally many tensors, one list behind the other:
    parameters, gradients, then the optimizer's states; then the number of steps, if updates
    need it, and the settings that are operands, which `given` names. Results are the lists
    of new parameters and states; with `in_place` they are the operands that they replace.
    """

    name = "torch.updates"

    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    function = prop_def(StringAttr)
    settings = prop_def(DictionaryAttr)
    lists = prop_def(I64)
    given = prop_def(ArrayAttr[StringAttr])
    in_place = prop_def(ArrayAttr[StringAttr])

    def __init__(self, group: Sequence[UpdateOp], in_place: Sequence[str]):
        first = group[0]
        each = [op.tensors for op in group]
        operands = [v for own in zip(*each, strict=True) for v in own]
        results = [
            r for own in zip(*(u.results for u in group), strict=True) for r in own
        ]
        super().__init__(
            operands=[[*operands, *shared_operands(first)]],
            result_types=[[result.type for result in results]],
            properties={
                "function": StringAttr(first.name.removeprefix("train.")),
                "settings": settings_of(first),
                "lists": IntegerAttr(len(first.tensors), i64),
                "given": ArrayAttr([StringAttr(n) for n in first.given_settings]),
                "in_place": ArrayAttr([StringAttr(each) for each in in_place]),
            },
        )

    @property
    def count(self) -> int:
        """The number of parameters that are updated."""
        return len(self.outputs) // (self.lists.value.data - 1)

    @property
    def replaced(self) -> list[SSAValue]:
        """
        The parameters and states that the results replace, in the order of the results.
        """
        operands, count = list(self.inputs), self.count
        lists = self.lists.value.data
        return [*operands[:count], *operands[2 * count : lists * count]]

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        kinds = [kind.data for kind in self.in_place.data]
        pairs = zip(self.outputs, self.replaced, strict=True)
        return {
            result: operand
            for i, (result, operand) in enumerate(pairs)
            if kinds[i // self.count] == OVERWRITTEN
        }

    def verify_(self) -> None:
        update = _UPDATES.get(self.function.data)
        if update is None:
            raise VerifyException(
                f"{self.name}: there is no function {self.function.data!r}, only "
                f"{', '.join(_UPDATES)}"
            )
        known = update.get_irdl_definition().properties
        for name, value in self.settings.data.items():
            if name not in known or not isinstance(value, FloatAttr | UnitAttr):
                raise VerifyException(
                    f"{self.name}: {name} = {value} is no hyper-parameter of {update.name}"
                )
        given = [name.data for name in self.given.data]
        if not set(given) <= set(STEP_SETTINGS):
            raise VerifyException(
                f"{self.name}: only {', '.join(STEP_SETTINGS)} can be given as operands"
            )
        kinds = {kind.data for kind in self.in_place.data}
        if not kinds <= {OVERWRITTEN, REUSED, KEPT}:
            raise VerifyException(
                f"{self.name}: in_place says {OVERWRITTEN}, {REUSED} or {KEPT} of each list"
            )
        self._verify_lists(len(given) + issubclass(update, AdamFamilyOp))

    def _verify_lists(self, others: int) -> None:
        """`others` is the number of operands behind the lists."""
        lists = self.lists.value.data
        whole = lists >= 2 and len(self.outputs) == self.count * (lists - 1)
        if (
            not whole
            or not self.outputs
            or len(self.inputs) != self.count * lists + others
            or len(self.in_place.data) != lists - 1
        ):
            raise VerifyException(
                f"{self.name}: {len(self.inputs)} operands, {len(self.outputs)} results and "
                f"{len(self.in_place.data)} kinds in in_place do not make {lists} lists, of "
                f"which all but the gradients are replaced"
            )
        for result, operand in zip(self.outputs, self.replaced, strict=True):
            assert isinstance(operand.type, TensorType)
            check_type(self, "a result", result, operand.type)


def shared_operands(op: UpdateOp) -> list[SSAValue]:
    """
    Returns the operands that updates of several parameters share: the number of steps, and
    settings.
    """
    step = [op.step] if isinstance(op, AdamFamilyOp) else []
    return [*step, *op.step_settings]


def settings_of(op: UpdateOp) -> DictionaryAttr:
    """Returns the hyper-parameters of an update that are no operands, by name."""
    found: dict[str, Attribute] = {
        name: op.properties[name]
        for name in sorted(op.settings)
        if name not in op.given_settings
    }
    if isinstance(op, SgdOp) and op.nesterov is not None:
        found["nesterov"] = op.nesterov
    return DictionaryAttr(found)


# Values of Python

SAVED = "saved"
"""The name of a list of tensors."""


@irdl_op_definition
class PackOp(TorchOp):
    """Packs several values into one, a Python list."""

    name = "torch.pack"

    inputs = var_operand_def()
    output = result_def(TupleType)
    traits = traits_def(Pure(), MayBeInFlight())

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[list(values)], result_types=[tuple_of(values)])
        self.output.name_hint = SAVED

    def verify_(self) -> None:
        if self.output.type != tuple_of(self.inputs):
            raise VerifyException(f"{self.name}: the tuple has other types")


@irdl_op_definition
class UnpackOp(TorchOp):
    """
    Unpacks the values of a `torch.pack`. It `releases` the list if nobody looks into that
    any more: it becomes empty.
    """

    name = "torch.unpack"

    input = operand_def(TupleType)
    outputs = var_result_def()
    releases = opt_prop_def(UnitAttr)
    traits = traits_def(Pure(), MayBeInFlight())

    def __init__(self, packed: SSAValue):
        assert isinstance(packed.type, TupleType)
        types = list[Attribute](packed.type.types.data)
        super().__init__(operands=[packed], result_types=[types])

    def verify_(self) -> None:
        if self.input.type != tuple_of(self.outputs):
            raise VerifyException(f"{self.name}: the tuple has other types")


def tuple_of(values: Sequence[SSAValue]) -> TupleType:
    """Returns the type of a list of these values."""
    return TupleType(ArrayAttr([cast(TypeAttribute, v.type) for v in values]))


Overwriting = MessageOp | StateCopiesOp | UpdatesOp
"""Ops whose results may be arguments of the program that they overwrite."""

Torch = Dialect(
    "torch",
    [
        *(LinearOp, AddcmulOp, AddLookUpsOp, AddIntoOp, ConvGradsOp),
        *(MessageOp, StateCopiesOp, UpdatesOp),
        *(PackOp, UnpackOp),
    ],
)
