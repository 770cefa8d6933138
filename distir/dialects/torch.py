"""
The `torch` dialect: calls of PyTorch, and lists of values in Python, in the program of
one rank.

After `project`, the steps of `lower` turn ops of `onnx`, `train` and `collective` into
these ops. The target `torch` prints each op as one expression. No op holds Python code:
the expression follows from the op's name, operands and checked properties. Printing the
ops of any file is therefore safe.

```mlir
%y = torch.linear %x, %w, %b {transposed} : (tensor<2x8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
%saved = torch.pack %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tuple<tensor<4xf32>, tensor<4xf32>>
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
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
from xdsl.ir import (
    Attribute,
    Dialect,
    Operation,
    SSAValue,
    TypeAttribute,
)
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

from distir.dialects.collective_ops.base import MayBeInFlight
from distir.dialects.collective_ops.rank_form import (
    InRankForm,
    RankAllGatherOp,
    RankAllReduceOp,
    RankReduceScatterOp,
)
from distir.dialects.dist_attributes import ASYNCHRONOUS, SCOPE
from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train import Train
from distir.dialects.train_ops.base import I64, INTEGERS, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
    check_type,
)
from distir.dialects.train_ops.convolution import ConvGradOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.dialects.train_ops.optimizers import STEP_SETTINGS, UpdateOp

IN_PLACE = "torch.in_place"
"""The attribute of an op whose result reuses the memory of its first operand."""

PRINTABLE = "torch.printable"
"""
The attribute of a rank's module that is ready to print: no step of `lower` is left.
"""

NO_GRAPH = "torch.no_graph"
"""
The attribute of a function that a CUDA graph was requested for but that cannot be
captured. Its value is the reason, as text.
"""

_PRINTED = "operands attr-dict `:` functional-type(operands, results)"


class TorchOp(IRDLOperation, OpFacts):
    """
    Base of the ops of the `torch` dialect. Properties are printed together with
    attributes.
    """

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = _PRINTED


# Calls of PyTorch


@irdl_op_definition
class LinearOp(TorchOp):
    """
    `F.linear`: the product of `x` [..., inputs] and the matrix `weight`, plus the
    vector `bias` [outputs], if given. The matrix is [inputs, outputs] if the op is
    `transposed`, else [outputs, inputs] as in PyTorch.
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
    Adds each slice of `dy` to the row of `base` [rows, ...] that the slice's index
    names. With the attribute `torch.in_place`, the result reuses the memory of `base`.
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
    """Adds `y` to `x` in place: the result reuses the memory of `x`."""

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
    """
    Both gradients of a convolution in one op: the results of `train.conv_grad_input`
    and `train.conv_grad_weight`.
    """

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


@irdl_op_definition
class BucketOp(TorchOp):
    """Allocates a vector that holds the tensors of one message, one after the other."""

    name = "torch.bucket"
    IS_FRESH: ClassVar[bool] = True

    bucket = result_def(TensorType)

    assembly_format = "attr-dict `:` type($bucket)"

    def __init__(self, values: Sequence[SSAValue]):
        size = sum(prod(shape_of(value)) for value in values)
        kind = element_type(values[0])
        super().__init__(operands=[], result_types=[TensorType(kind, [size])])


@irdl_op_definition
class ProductIntoOp(TorchOp):
    """
    `torch.mm`: writes the product of the matrices `x` [n, k] and `y` [k, m] to the
    elements of the vector `bucket` from `start` on. `x_transposed` and `y_transposed`
    say that an operand is the transpose of the matrix.
    """

    name = "torch.product_into"
    IS_FRESH: ClassVar[bool] = True

    x = operand_def(TensorType)
    y = operand_def(TensorType)
    bucket = operand_def(TensorType)
    start = prop_def(I64)
    x_transposed = opt_prop_def(UnitAttr)
    y_transposed = opt_prop_def(UnitAttr)
    product = result_def(TensorType)

    def __init__(
        self,
        x: tuple[SSAValue, bool],
        y: tuple[SSAValue, bool],
        bucket: SSAValue,
        start: int,
        result_type: Attribute,
    ):
        """
        Makes the op. `x` and `y` are pairs of an operand and whether it is transposed.
        """
        super().__init__(
            operands=[x[0], y[0], bucket],
            result_types=[result_type],
            properties={
                "start": IntegerAttr(start, i64),
                "x_transposed": UnitAttr() if x[1] else None,
                "y_transposed": UnitAttr() if y[1] else None,
            },
        )

    def verify_(self) -> None:
        shapes = [shape_of(value) for value in (self.x, self.y)]
        if any(len(shape) != 2 for shape in shapes):
            raise VerifyException(f"{self.name}: an operand is not a matrix")
        x, y = shapes
        n, k = reversed(x) if self.x_transposed else x
        rows, m = reversed(y) if self.y_transposed else y
        if k != rows:
            raise VerifyException(f"{self.name}: the product sums {k} and {rows} terms")
        check_shape(self, "product", self.product, (n, m))
        for name, value in (("x", self.x), ("y", self.y), ("bucket", self.bucket)):
            check_element_type(self, name, value, element_type(self.product))
        size, start = prod(shape_of(self.bucket)), self.start.value.data
        if not 0 <= start <= size - n * m:
            raise VerifyException(
                f"{self.name}: {n * m} elements from {start} on are not all in a bucket of "
                f"{size}"
            )


# Calls on lists of tensors

_MESSAGES: dict[str, type[InRankForm]] = {
    "all_reduce": RankAllReduceOp,
    "reduce_scatter": RankReduceScatterOp,
    "all_gather": RankAllGatherOp,
}
"""The collectives that can share a message, by the name of their kind."""


@irdl_op_definition
class MessageOp(TorchOp):
    """
    Several collectives of one `kind` over one group, sent in one message.

    `kind` is `all_reduce`, `reduce_scatter` or `all_gather`. The message has
    `dist.asynchronous` if its collectives have it. `dims`, `runs` and `reduction` hold
    the collectives' properties `dim`, `run` and `reduction`. `dims` and `runs` have one
    number per collective, -1 for an absent property; an `all_reduce` has neither. With
    `overwrites`, the second half of the operands are arguments of the program, and the
    results overwrite them. With `in_bucket`, the last operand is the memory of an
    `all_reduce` (`torch.bucket`), which already contains some of the other operands.
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
    in_bucket = opt_prop_def(UnitAttr)
    traits = traits_def(MayBeInFlight())

    def __init__(self, bucket: Sequence[InRankForm], targets: Sequence[SSAValue] = ()):
        first = bucket[0]
        properties: dict[str, Attribute | None] = {
            "axes": first.axes,
            "kind": StringAttr(first.kind),
            "reduction": first.properties.get("reduction"),
            "overwrites": UnitAttr() if targets else None,
        }
        if not isinstance(first, RankAllReduceOp):
            properties["dims"] = _numbers([op.number("dim") for op in bucket])
            properties["runs"] = _numbers([op.number("run") for op in bucket])
        super().__init__(
            operands=[[*(op.source for op in bucket), *targets]],
            result_types=[[op.result.type for op in bucket]],
            properties=properties,
        )
        if first.is_asynchronous:
            self.attributes[ASYNCHRONOUS] = UnitAttr()

    def put_in(self, bucket: SSAValue) -> None:
        """Makes `bucket` the memory of the message."""
        self.operands = [*self.operands, bucket]
        self.in_bucket = UnitAttr()

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """
        The results that overwrite arguments of the program, each with its argument.
        """
        return _second_half(self, self.overwrites)

    @property
    def dims_and_runs(self) -> tuple[tuple[int | None, int | None], ...] | None:
        """
        The dimension and the run length of each collective; the run length is the
        number of consecutive elements that a rank gets at a time. A missing number is
        None. The whole result is None for an `all_reduce`.
        """
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
        needs = kind.REDUCES, kind is not RankAllReduceOp
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
        if self.in_bucket is None:
            _verify_halves(self, self.overwrites)
            return
        *own, bucket = self.inputs
        if (
            kind is not RankAllReduceOp
            or self.overwrites
            or len(own) != len(self.outputs)
        ):
            raise VerifyException(
                f"{self.name}: only an all_reduce, with one operand for each result and none "
                f"to overwrite, has a bucket"
            )
        check_shape(self, "bucket", bucket, (sum(prod(shape_of(x)) for x in own),))
        check_element_type(self, "bucket", bucket, element_type(own[0]))


@irdl_op_definition
class StateCopiesOp(TorchOp):
    """
    Copies several arguments of the program to the device.

    With `stores`, the op copies values into arguments instead; these arguments are then
    the second half of the operands.
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
        """
        The results that overwrite arguments of the program, each with its argument.
        """
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
    """
    Raises VerifyException unless each result has an operand and, if `overwrites` is
    given, an argument of the same type to overwrite.
    """
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


def _numbers(found: Sequence[int | None]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i64, [-1 if n is None else n for n in found])


def _number(value: int | float) -> int | None:
    return None if value < 0 else int(value)


OVERWRITTEN, REUSED, KEPT = "overwritten", "reused", "kept"
"""
What happens to the memory of operands that updates replace. `UpdatesOp` explains the
three words.
"""

_UPDATES: dict[str, type[UpdateOp]] = {
    op.name.removeprefix("train."): op
    for op in Train.operations
    if issubclass(op, UpdateOp)
}
"""The updates, by the name of their function."""


@irdl_op_definition
class UpdatesOp(TorchOp):
    """
    Several parameter updates that differ only in their tensors, as one call.

    `function` is the name of the updates' `train` op. `settings` are the
    hyper-parameters. `in_place` has one word per list of results, for the operands that
    these results replace: `overwritten` operands are arguments of the program, `reused`
    operands are memory that no other op needs, and `kept` operands must stay unchanged.

    The operands begin with `lists` lists of equal length, one for each operand that
    differs between parameters: parameters, gradients, then the optimizer's states. Next
    come the number of steps, if the updates need this number, and the settings that are
    operands, whose names are in `given`. There is a list of results for each result of
    the updates, such as new parameters and new states. Results whose list is
    `overwritten` or `reused` take the memory of the operands that they replace; results
    that replace no operands are `kept`.
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
        each = [op.own_operands for op in group]
        operands = [v for own in zip(*each, strict=True) for v in own]
        results = [
            r for own in zip(*(u.results for u in group), strict=True) for r in own
        ]
        super().__init__(
            operands=[[*operands, *first.shared_operands]],
            result_types=[[result.type for result in results]],
            properties={
                "function": StringAttr(first.name.removeprefix("train.")),
                "settings": settings_of(first),
                "lists": IntegerAttr(len(each[0]), i64),
                "given": ArrayAttr([StringAttr(n) for n in first.given_settings]),
                "in_place": ArrayAttr([StringAttr(each) for each in in_place]),
            },
        )

    @property
    def count(self) -> int:
        """The number of parameters that the op updates."""
        return len(self.outputs) // max(len(self.in_place.data), 1)

    @property
    def module(self) -> str:
        """The name of the runtime module that defines the op's function."""
        return _UPDATES[self.function.data].TORCH_MODULE

    @property
    def replaced(self) -> list[SSAValue | None]:
        """
        For each result, the parameter or state that the result replaces. An entry is
        None if the result replaces nothing.
        """
        count = self.count
        found: list[SSAValue | None] = []
        places = _UPDATES[self.function.data].REPLACED[: len(self.in_place.data)]
        for place in places:
            if place is None:
                found += [None] * count
            else:
                found += self.inputs[place * count : (place + 1) * count]
        return found

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """
        The results that overwrite arguments of the program, each with its argument.
        """
        kinds = [kind.data for kind in self.in_place.data]
        pairs = zip(self.outputs, self.replaced, strict=True)
        return {
            result: operand
            for i, (result, operand) in enumerate(pairs)
            if operand is not None and kinds[i // self.count] == OVERWRITTEN
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
        has_step = any(
            name == "step" for name, _ in update.get_irdl_definition().operands
        )
        self._verify_lists(len(given) + has_step, len(update.REPLACED))

    def _verify_lists(self, others: int, results: int) -> None:
        """
        Raises VerifyException unless the numbers and types of operands and results
        agree. `others` is the number of operands after the lists, and `results` is the
        largest number of results of one update.
        """
        lists, kinds = self.lists.value.data, len(self.in_place.data)
        if (
            lists < 2
            or not 1 <= kinds <= results
            or not self.outputs
            or len(self.outputs) != self.count * kinds
            or len(self.inputs) != self.count * lists + others
            or len(self.replaced) != len(self.outputs)
        ):
            raise VerifyException(
                f"{self.name}: {len(self.inputs)} operands, {len(self.outputs)} results and "
                f"{kinds} kinds in in_place do not make {lists} lists, of which some are "
                f"replaced"
            )
        for result, operand in zip(self.outputs, self.replaced, strict=True):
            if operand is not None:
                assert isinstance(operand.type, TensorType)
                check_type(self, "a result", result, operand.type)


def settings_of(op: UpdateOp) -> DictionaryAttr:
    """Returns the hyper-parameters of an update that are not operands, by name."""
    found: dict[str, Attribute] = {
        name: op.properties[name]
        for name in sorted(op.settings)
        if name not in op.given_settings
    }
    flags = {n: v for n, v in op.properties.items() if isinstance(v, UnitAttr)}
    return DictionaryAttr(found | flags)


# Values of Python

SAVED = "saved"
"""The name of the variables that hold the lists made by `torch.pack`."""


@irdl_op_definition
class PackOp(TorchOp):
    """Packs several values into one Python list."""

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
    Unpacks the list that a `torch.pack` op made. With `releases`, the op also empties
    the list, because no other op reads it later.
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


@irdl_op_definition
class AwaitGradientsOp(TorchOp):
    """
    Gives results of the program to the program's caller, which computes a loss from
    them, and waits for the gradients of this loss. The op thus interrupts the program
    between the forward and the backward pass.

    `places` holds, for each operand, its index among the results of the program.
    `arguments` holds, for each result, its index among the program's arguments; the
    caller gives these arguments later than all other arguments. A program over
    micro-batches has one such op for each micro-batch; `part` is the number of the
    micro-batch.
    """

    name = "torch.await_gradients"

    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    places = prop_def(INTEGERS)
    arguments = prop_def(INTEGERS)
    part = prop_def(I64)

    def __init__(
        self,
        given: Mapping[int, SSAValue],
        awaited: Mapping[int, SSAValue],
        part: int = 0,
    ):
        super().__init__(
            operands=[list(given.values())],
            result_types=[[value.type for value in awaited.values()]],
            properties={
                "places": DenseArrayBase.from_list(i64, list(given)),
                "arguments": DenseArrayBase.from_list(i64, list(awaited)),
                "part": IntegerAttr(part, i64),
            },
        )

    def verify_(self) -> None:
        counts = (len(self.inputs), len(self.outputs))
        if counts != (len(self.places), len(self.arguments)) or not counts[1]:
            raise VerifyException(
                f"{self.name}: each operand has a place among the results of the program, "
                f"and each result one among its arguments"
            )


def tuple_of(values: Sequence[SSAValue]) -> TupleType:
    """Returns the type of a list of `values`."""
    return TupleType(ArrayAttr([cast(TypeAttribute, v.type) for v in values]))


Overwriting = MessageOp | StateCopiesOp | UpdatesOp
"""Ops whose results may overwrite arguments of the program."""

Torch = Dialect(
    "torch",
    [
        *(LinearOp, AddcmulOp, AddLookUpsOp, AddIntoOp, ConvGradsOp),
        *(BucketOp, ProductIntoOp, MessageOp, StateCopiesOp, UpdatesOp),
        *(PackOp, UnpackOp, AwaitGradientsOp),
    ],
)
