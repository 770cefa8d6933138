"""
Changes the floating-point types of a sequential program. The program gets one type, or
mixed precision as in PyTorch's `autocast` on GPUs. In mixed precision, one list of
operators computes in 16 bits and a second list in 32 bits, whatever the types of their
operands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerAttr,
    ModuleOp,
    TensorType,
    f32,
    f64,
    i1,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_ops.traits import FULL_PRECISION, LOW_PRECISION
from distir.dialects.onnx_ops.values import numpy_dtype, onnx_element_type, tensor_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.checks import FLOATS
from distir.dialects.train_ops.experts import CombineOp, DispatchOp, GroupedProductOp
from distir.dialects.train_ops.selective_scan import SelectiveScanOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder
from distir.program import (
    CACHE,
    argument_names,
    argument_roles,
    describe,
    entry_function,
    return_op,
    updated_arguments,
)

Float = Float16Type | BFloat16Type | Float32Type | Float64Type

_ALIKE: Mapping[type[Operation], Sequence[str]] = {
    DispatchOp: ("x", "weights"),
    CombineOp: ("x", "weights"),
    GroupedProductOp: ("x", "matrices"),
    SelectiveScanOp: ("x", "b", "c"),
}
"""
The operands, by op, that have the same floating-point type as the results. This
concerns ops outside of ONNX's standard. Their other operands can have any type.
"""

Wanted = Callable[[OnnxOp], Float | None]
"""
A function that returns the type in which an op will compute. It returns None if the op
computes in the type of its operands.
"""

_TOGETHER = frozenset(("onnx.Attention", "onnx.Pow"))
"""The operators whose operands may differ in type in ONNX but not in PyTorch."""

_SHAPES = ("onnx.Reshape", "onnx.Unsqueeze")
"""The operators that are looked through to find where a value comes from."""

_RMS_NORM = "onnx.RMSNormalization"
"""
The operator whose operand x is cast to the type of its scale. In ONNX's standard its
result has the type of the scale, but ONNX's inference gives it the type of x.
"""


def _is_of_boolean(value: SSAValue) -> bool:
    """Whether `value` is a Boolean that was cast to numbers, and possibly reshaped."""
    owner = value.owner
    while isinstance(owner, OnnxOp) and owner.name in _SHAPES:
        owner = owner.operands[0].owner
    if not isinstance(owner, OnnxOp) or owner.name != "onnx.Cast":
        return False
    return element_type(owner.operands[0]) == i1


def float_of(value: SSAValue) -> Float | None:
    """
    Returns the floating-point element type of a tensor, or None for any other value.
    """
    type_ = value.type
    if isinstance(type_, TensorType) and isinstance(type_.element_type, FLOATS):
        return type_.element_type
    return None


def widest(types: Sequence[Float]) -> Float:
    """Returns the type to which PyTorch promotes values of the given types."""
    distinct = set(types)
    if distinct == {Float16Type(), BFloat16Type()}:
        return f32
    return max(distinct, key=lambda t: t.bitwidth)


class Retyping:
    """
    Propagates floating-point types through the entry function of a sequential program.
    Each op computes in the type that `wanted` returns for it, or in the widest type of
    its operands if `wanted` returns None. The op's operands are cast to that type. An
    op for which the standard excludes the type computes in f32.

    Values that depend only on constants and integers keep their type. They are cast
    where an op combines them with other values. With `promoting`, the types of such
    values are among those from which the widest is taken, unless the values are
    scalars.
    """

    def __init__(self, module: ModuleOp, *, promoting: bool):
        self.function: FuncOp = entry_function(module)
        self.block = self.function.body.block
        self._promoting = promoting
        roles = argument_roles(self.function)
        pairs = zip(self.block.args, roles, strict=True)
        self._flowing: set[SSAValue] = {
            a for a, role in pairs if role in ("parameter", "input", CACHE)
        }
        self._far: dict[SSAValue, float] = {}
        self._original: dict[SSAValue, Float] = {}
        self._casts: dict[tuple[SSAValue, Attribute], SSAValue] = {}
        self._last: Operation | None = None
        for op in self.block.ops:
            if isinstance(op, CallOp):
                raise DistIRError(
                    f"{describe(op)} is in a program whose types of floats are to change, "
                    f"which is possible before repeated layers become functions; run "
                    f"inline-calls first"
                )

    def run(self, wanted: Wanted) -> None:
        """
        Casts the operands of every op and changes the types of the op's results, in
        program order. `wanted` returns the type in which an op will compute, or None if
        the operands decide the type.
        """
        for op in list(self.block.ops):
            if isinstance(op, ReturnOp):
                continue
            if any(operand in self._flowing for operand in op.operands):
                self._flowing.update(op.results)
                if isinstance(op, OnnxOp) and op.name != "onnx.Cast":
                    self._retype(op, wanted(op))
                elif (names := _ALIKE.get(type(op))) is not None:
                    self._retype_alike(op, [getattr(op, name) for name in names])
                elif not isinstance(op, OnnxOp):
                    self._as_before(op)
            else:
                self._note_far(op)
        self._keep_updates()
        self.function.update_function_type()

    def cast(self, value: SSAValue, element: Float) -> SSAValue:
        """
        Returns `value` in the type `element`. A value is cast at most once, right after
        the op that computes it.
        """
        if float_of(value) in (None, element):
            return value
        key = value, element
        if key not in self._casts:
            self._casts[key] = self._new_cast(value, element)
        return self._casts[key]

    def begin(self, argument: SSAValue, element: Float) -> None:
        """Casts `argument` to the type `element` for all its uses."""
        cast = self.cast(argument, element)
        argument.replace_all_uses_with(cast)
        assert isinstance(cast.owner, Operation)
        cast.owner.operands[0] = argument
        self._changed(cast, argument)

    def retype(self, value: SSAValue, element: Float) -> None:
        """Changes the element type of `value` itself to `element`."""
        assert isinstance(value.type, TensorType)
        type_ = tensor_type(value.type.get_shape(), element)
        hint = value.name_hint
        new = Rewriter.replace_value_with_new_type(value, type_)
        new.name_hint = hint
        self._changed(new, value)

    def _changed(self, new: SSAValue, old: SSAValue) -> None:
        self._flowing.add(new)
        element = self._original.get(old, float_of(old))
        assert element is not None
        self._original[new] = element

    def _new_cast(self, value: SSAValue, element: Float) -> SSAValue:
        build = GradientBuilder(self._behind(value), _scope(value))
        largest = float(_info(element).max)
        array = direct_constant(value)
        if array is not None:
            return build.constant(_bounded(array, largest).astype(numpy_dtype(element)))
        source = value
        if self._far.get(value, 0.0) > largest:
            # Numbers that masks add would become infinite, and hidden rows NaN.
            low, high = (build.scalar(sign * largest, value) for sign in (-1, 1))
            source = build.onnx("Clip", value, low, high)
        return build.onnx("Cast", source, to=onnx_element_type(element))

    def _behind(self, value: SSAValue) -> Callable[[Operation], None]:
        """
        Returns a function that inserts ops after the op that computes `value`. If
        `value` is an argument, the function inserts ops before all other ops.
        """
        if isinstance(value, BlockArgument):

            def at_start(op: Operation) -> None:
                point = InsertPoint.at_start(self.block)
                if self._last is not None:
                    point = InsertPoint.after(self._last)
                Rewriter.insert_op(op, point)
                self._last = op

            return at_start
        last: list[Operation] = [value.owner]  # pyright: ignore[reportAssignmentType]

        def behind(op: Operation) -> None:
            Rewriter.insert_op(op, InsertPoint.after(last[0]))
            last[0] = op

        return behind

    def _retype(self, op: OnnxOp, wanted: Float | None) -> None:
        """
        Casts the operands of an ONNX op and changes the types of its results. Operands
        with the same type variable in the op's schema get the same type.
        """
        groups: dict[str, list[int]] = {}
        for index, operand in enumerate(op.operands):
            variable = _variable(op, op.operand_position(index))
            if float_of(operand) is not None and variable is not None:
                groups.setdefault(variable, []).append(index)
        if op.name in _TOGETHER:
            result = next(iter(groups), "")
            everything = [i for members in groups.values() for i in members]
            groups = {result: everything}
        made: dict[str, Float] = {}
        for variable, members in groups.items():
            target = wanted or self._common(op, members)
            if target is None:
                continue
            if not all(_takes(op, op.operand_position(i), target) for i in members):
                target = f32
            made[variable] = target
            for index in members:
                op.operands[index] = self.cast(op.operands[index], target)
        if op.name == _RMS_NORM and (scale := float_of(op.operands[1])) is not None:
            op.operands[0] = self.cast(op.operands[0], scale)
        formals = op.SCHEMA.outputs
        for index, result in enumerate(list(op.results)):
            formal = formals[min(index, len(formals) - 1)]
            target = made.get(formal.type_str)
            if target is not None and float_of(result) not in (None, target):
                self.retype(result, target)

    def _retype_alike(self, op: Operation, alike: Sequence[SSAValue | None]) -> None:
        """
        Casts the operands `alike` to their widest type, which becomes the type of the
        results of `op`. Zeros and ones from booleans have no influence on the widest
        type, because all types represent them exactly.
        """
        floats = [i for i, v in enumerate(op.operands) if v in alike]
        counted = [i for i in floats if not _is_of_boolean(op.operands[i])]
        target = self._common(op, counted or floats)
        if target is None:
            return
        for index in floats:
            op.operands[index] = self.cast(op.operands[index], target)
        for result in list(op.results):
            if float_of(result) not in (None, target):
                self.retype(result, target)

    def _common(self, op: Operation, members: Sequence[int]) -> Float | None:
        """
        Returns the type to which PyTorch promotes the operands with the indices
        `members`. Returns None if all these operands depend on constants alone.
        """
        values = [op.operands[index] for index in members]
        counted = [v for v in values if v in self._flowing]
        if counted and self._promoting:
            counted += [v for v in values if v not in self._flowing and _is_large(v)]
        types = [t for v in counted if (t := float_of(v)) is not None]
        return widest(types) if types else None

    def _as_before(self, op: Operation) -> None:
        """
        Casts the operands of an op that is not an ONNX operator back to their original
        types.
        """
        for index, operand in enumerate(op.operands):
            if operand in self._original:
                op.operands[index] = self.cast(operand, self._original[operand])

    def _note_far(self, op: Operation) -> None:
        """
        Records the largest magnitude of the constants from which a result of `op` is
        computed.
        """
        found = [self._far[v] for v in op.operands if v in self._far]
        for result in op.results:
            array = direct_constant(result)
            if array is not None and float_of(result) is not None and array.size:
                with np.errstate(invalid="ignore"):
                    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
                found.append(float(finite.max(initial=0.0)))
            if found and float_of(result) is not None:
                self._far[result] = max(found)

    def _keep_updates(self) -> None:
        """
        Casts each result that replaces an argument in the next step to the argument's
        type.
        """
        returned = return_op(self.function)
        for result, argument in updated_arguments(self.function).items():
            element = float_of(self.block.args[argument])
            if element is not None:
                returned.operands[result] = self.cast(
                    returned.operands[result], element
                )


def _scope(value: SSAValue) -> Attribute | None:
    return (
        value.owner.attributes.get(SCOPE)
        if isinstance(value.owner, Operation)
        else None
    )


def _info(element: Float) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(numpy_dtype(element))


def _bounded(array: np.ndarray[Any, Any], largest: float) -> np.ndarray[Any, Any]:
    """
    Returns the array with its finite values clamped to magnitudes up to `largest`.
    """
    return np.where(np.isfinite(array), np.clip(array, -largest, largest), array)


def _variable(op: OnnxOp, position: int) -> str | None:
    """
    Returns the type variable of the input at `position` in the schema of `op`. Returns
    None if the type of the input is fixed.
    """
    formals = op.SCHEMA.inputs
    formal = formals[min(position, len(formals) - 1)]
    return None if "(" in formal.type_str else formal.type_str


def _takes(op: OnnxOp, position: int, element: Float) -> bool:
    """
    Whether ONNX's standard allows elements of type `element` for the input at
    `position`.
    """
    formals = op.SCHEMA.inputs
    name = {"f16": "float16", "bf16": "bfloat16", "f32": "float", "f64": "double"}
    wanted = f"tensor({name[str(element)]})"
    return wanted in formals[min(position, len(formals) - 1)].types


def _is_large(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and bool(value.type.get_shape())


def autocast(module: ModuleOp, element: Float) -> None:
    """
    Casts operands of a sequential program, in place, as `torch.autocast("cuda", dtype)`
    does. `element` is the 16-bit type in which matrix products, convolutions and
    attention compute. Norms, softmax, powers, sums and losses compute in f32. All other
    ops compute in the widest type of their operands. A one-dimensional parameter that
    is added to a matrix product is the bias of a linear layer and is added in 16 bits.
    Parameters keep their type, and each is cast once a step.

    Values that depend on constants alone keep their type, because models switch
    autocast off for their rotary tables. Operands of an op with an operand in f64 are
    not cast either. Raises DistIRError for a program with calls.
    """

    def wanted(op: OnnxOp) -> Float | None:
        if any(float_of(operand) == f64 for operand in op.operands):
            return None
        if op.name in LOW_PRECISION or _adds_bias(op):
            return element
        return f32 if op.name in FULL_PRECISION else None

    Retyping(module, promoting=True).run(wanted)


def _adds_bias(op: OnnxOp) -> bool:
    """Whether `op` adds the bias of a linear layer to a matrix product."""
    if op.name != "onnx.Add":
        return False
    product, bias = sorted(op.operands, key=lambda v: isinstance(v, BlockArgument))
    return (
        isinstance(product.owner, OnnxOp)
        and product.owner.name == "onnx.MatMul"
        and isinstance(bias, BlockArgument)
        and isinstance(bias.type, TensorType)
        and bias.type.get_num_dims() == 1
    )


_LOSSES = frozenset(
    (
        "onnx.LogSoftmax",
        "onnx.NegativeLogLikelihoodLoss",
        "onnx.SoftmaxCrossEntropyLoss",
    )
)
"""The operators of losses, which always compute in 32 bits, as they do in models."""


def convert(
    module: ModuleOp, element: Float, *, stored: bool, apart: Collection[str] = ()
) -> None:
    """
    Makes a sequential program compute in the floating-point type `element`, in place.
    This corresponds to `module.to(dtype)`, except that losses compute in f32. Caches
    get the type. With `stored`, parameters get the type, too; without it, parameters
    are cast at the start of the program. Inputs are cast at the start in both cases.
    Arguments named in `apart` are not converted.

    Buffers, and values that depend on constants alone such as rotary tables and masks,
    keep their type and are cast where they are used. Raises DistIRError for a program
    with calls.
    """
    retyping = Retyping(module, promoting=False)
    roles, names = argument_roles(retyping.function), argument_names(retyping.function)
    for argument, role, name in zip(
        list(retyping.block.args), roles, names, strict=True
    ):
        if float_of(argument) in (None, element) or name in apart:
            continue
        if role == CACHE or (role == "parameter" and stored):
            retyping.retype(argument, element)
        elif role in ("parameter", "input"):
            retyping.begin(argument, element)
    for op in retyping.block.ops:
        # In a 16-bit model, a cast to 16 bits means a cast to the model's type.
        if isinstance(op, OnnxOp) and op.name == "onnx.Cast":
            (result,) = op.results
            type_ = float_of(result)
            if type_ not in (None, element) and type_.bitwidth == 16:
                retyping.retype(result, element)
                op.properties["to"] = IntegerAttr(onnx_element_type(element), i64)
    retyping.run(lambda op: f32 if op.name in _LOSSES else None)
