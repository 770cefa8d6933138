"""
Converts the functions of a StableHLO module to `onnx` and `train` ops.

JAX makes private functions of `jnp.where`, `jax.jit` and other functions. The converter
inlines the calls of private functions, except inside a loop: there the function is
kept, and each iteration calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import tensor_of
from distir.errors import DistIRError, did_you_mean
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.branches import convert_branches
from distir.frontends.stablehlo.builder import CONSTANT_ELEMENTS, TensorBuilder
from distir.frontends.stablehlo.loops import convert_loop
from distir.frontends.stablehlo.names import scope_of_name
from distir.frontends.stablehlo.ops import load_all
from distir.frontends.stablehlo.parser import name_of
from distir.frontends.stablehlo.refusals import advice
from distir.frontends.stablehlo.registry import (
    CONVERSIONS,
    HloCall,
    HloResult,
    UnsupportedError,
    Values,
)
from distir.frontends.stablehlo.requests import ShardingRequests
from distir.frontends.stablehlo.tensors import Array, LazyTensor
from distir.program.locations import line_location, line_of

Signature = tuple[Any, ...]


class Converter:
    """
    Converts one module.

    - `source`: the name of the module in messages.
    - `functions`: the functions of the new program, without the entry function.
    - `constants`: the arguments for constants too large for the program, with their
      arrays.
    - `requests`: collects the shardings that the program requests; if it is None, the
      conversion ignores sharding constraints.
    """

    def __init__(
        self, module: ModuleOp, source: str, requests: ShardingRequests | None = None
    ):
        load_all()
        self.requests = requests
        self.held: list[tuple[HloResult, SSAValue]] = []
        """
        The results of ops of StableHLO, with the values of the new program that hold
        them; an op in a loop has one for each round.
        """
        self.source = source
        self.sources = {
            op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)
        }
        self.functions: list[FuncOp] = []
        self.constants: list[tuple[SSAValue, Array]] = []
        self._outlined: dict[Signature, Outlined] = {}
        self.entry = Block()
        self.build = TensorBuilder(self.entry)
        self._depth = 0
        self._inside_function = False
        self._elements: set[Attribute] = set()

    def function(self, name: str) -> FuncOp:
        """
        Returns the function `name` of the module. Raises DistIRError if the module has
        no such function.
        """
        if name not in self.sources:
            raise DistIRError(
                f"{self.source} has no function @{name}; "
                f"{did_you_mean(name, self.sources)}it has {', '.join(self.sources)}"
            )
        return self.sources[name]

    def name_of(self, op: Operation) -> str:
        """Returns the name of `op`."""
        return op_name(op)

    def word(self, op: Operation, name: str) -> str:
        """
        Returns the last word of the attribute `name` of an op, or "" if the attribute
        is absent.
        """
        return attributes.last_word(attributes.attribute(op, name))

    def constant(self, array: Array, element: Attribute) -> LazyTensor:
        """
        Returns a tensor with the elements of `array`. In the entry function, a large
        array whose elements are not all equal becomes an argument.
        """
        tensor = LazyTensor.known(array, array.shape, element)
        assert tensor.array is not None
        if tensor.array.size <= CONSTANT_ELEMENTS or self._inside_function:
            return tensor
        for value, known in self.constants:
            if known is array:
                return LazyTensor.of(value)
        value = self.entry.insert_arg(
            tensor_of(element, array.shape), len(self.entry.args)
        )
        self.constants.append((value, array))
        return LazyTensor.of(value)

    def constrained(self, op: Operation, tensor: LazyTensor) -> LazyTensor:
        """
        Returns `tensor` with the sharding that the constraint `op` requests. Returns
        `tensor` unchanged if the import ignores shardings, or if the tensor is a known
        array.
        """
        asked = None if self.requests is None else self.requests.inside.get(op)
        if self.requests is None or asked is None or tensor.array is not None:
            return tensor
        value = self.build.whole(tensor)
        constrain = self.requests.constrained(value, asked)
        if constrain is None:
            return LazyTensor.of(value)
        return LazyTensor.of(self.build.add(constrain).results[0])

    def inline(
        self, function: FuncOp, operands: Sequence[LazyTensor]
    ) -> list[LazyTensor]:
        """
        Converts the body of a function in the place of a call, with `operands` as its
        arguments, and returns its results. Raises DistIRError for a recursive function.
        """
        if self._depth > 200:
            raise DistIRError(
                f"{self.source}: @{function.sym_name.data} calls itself, or calls are "
                f"nested more than 200 deep; leave out the recursion"
            )
        self._depth += 1
        found = self.block(function.body.block, operands)
        self._depth -= 1
        return found

    def block(
        self, block: Block, operands: Sequence[LazyTensor], outer: Values | None = None
    ) -> list[LazyTensor]:
        """
        Converts the ops of a block, with `operands` as its arguments, and returns the
        tensors that the block returns. `outer` are the values from outside of the block
        that its ops may use.
        """
        values: Values = dict(outer or {})
        values.update(zip(block.args, operands, strict=True))
        last = block.last_op
        assert last is not None
        for op in block.ops:
            if op is last:
                break
            self.op(op, values)
        return [values[value] for value in last.operands]

    def op(self, op: Operation, values: Values) -> None:
        """
        Converts one op, and adds its results to `values`. Raises DistIRError if the op
        cannot be converted.
        """
        name = op_name(op)
        operands = [values[value] for value in op.operands]
        scope = scope_of_name(name_of(op.location))
        if scope or not self.build.scope:
            self.build.scope = scope
        self.build.location = line_location(op.location) or self.build.location
        try:
            for result in op.results:
                self._check_element(result.type)
            if name == "func.call":
                results = self.inline(self.callee(op), operands)
            elif name == "stablehlo.while":
                results = convert_loop(self, op, operands, values)
            elif name in ("stablehlo.case", "stablehlo.if"):
                results = convert_branches(self, op, operands, values)
            else:
                conversion = CONVERSIONS.get(name)
                if conversion is None:
                    raise UnsupportedError("it is not known")
                found = conversion(HloCall(self, op, operands))
                results = [found] if isinstance(found, LazyTensor) else list(found)
        except UnsupportedError as error:
            raise DistIRError(self.refusal(op, str(error))) from error
        for i, (value, result) in enumerate(zip(op.results, results, strict=True)):
            assert isinstance(value.type, TensorType)
            assert result.shape == value.type.get_shape(), (name, result.shape)
            values[value] = result
            if result.value is not None and result.is_whole:
                self.held.append((HloResult(op, i), result.value))

    def _check_element(self, type_: Attribute) -> None:
        """
        Raises UnsupportedError if ONNX has no tensors with the element type of `type_`.
        """
        if isinstance(type_, TensorType) and type_.element_type not in self._elements:
            try:
                onnx_element_type(type_.element_type)
            except ValueError:
                raise UnsupportedError(
                    f"its result has elements of type {type_.element_type}"
                ) from None
            self._elements.add(type_.element_type)

    def refusal(self, op: Operation, why: str) -> str:
        """
        Returns the error message for an op that cannot be converted, with the reason
        `why`. If the op has no source line, and JAX lowers the function of the op only
        once, the message gives the source line of the function's call.
        """
        line, called = line_of(self.build.location), name_of(op.location)
        where = f" at {line}" if line else ""
        source = f" ({called})" if called else ""
        target = attributes.text(attributes.attribute(op, "call_target_name"))
        return (
            f"{self.source}: {op_name(op)}{source}{where} cannot be converted: {why}; "
            f"{advice(op_name(op), target)}"
        )

    def callee(self, op: Operation) -> FuncOp:
        """
        Returns the function that the call `op` calls. Raises DistIRError if there is no
        such function.
        """
        return self.function(attributes.text(attributes.attribute(op, "callee")))

    def call(
        self, function: FuncOp, operands: Sequence[LazyTensor]
    ) -> list[LazyTensor]:
        """
        Adds a call of a function and returns its results. All calls whose operands have
        the same shapes, types and known elements share one converted function.
        """
        key: Signature = (function.sym_name.data, *map(_form, operands))
        made = self._outlined.get(key)
        if made is None:
            made = self.outlined(function, operands)
            self._outlined[key] = made
        passed = [self.build.base(operands[i]) for i in made.passed]
        scope = self.build.scope
        call = CallOp(made.name, passed, made.types)
        if made.types:
            if scope:
                call.attributes[SCOPE] = SCOPE.attr(scope)
            self.build.block.add_op(call)
        results = iter(call.results)
        return [
            LazyTensor.of(next(results), form.shape) if form.array is None else form
            for form in made.results
        ]

    def outlined(self, function: FuncOp, operands: Sequence[LazyTensor]) -> Outlined:
        """
        Converts a function of the module to a function of the new program. The new
        function is specialized to the shapes, types and known elements of `operands`;
        known elements become constants inside it.
        """
        outer, block = self.build, Block()
        inside, self._inside_function = self._inside_function, True
        self.build = TensorBuilder(block)
        self.build.location = outer.location
        passed = [i for i, operand in enumerate(operands) if operand.array is None]
        inner = list(operands)
        for i in passed:
            type_ = tensor_of(operands[i].element, operands[i].base)
            value = block.insert_arg(type_, len(block.args))
            inner[i] = LazyTensor.of(value, operands[i].shape)
        results = self.inline(function, inner)
        returned = [
            result if result.array is not None else self.written(result)
            for result in results
        ]
        values = [r.value for r in returned if r.value is not None]
        block.add_op(ReturnOp(*values))
        self.build, self._inside_function = outer, inside
        types = [value.type for value in values]
        name = self.free_name(function.sym_name.data)
        made = FuncOp(name, (block.arg_types, types), Region(block), "private")
        self.functions.append(made)
        return Outlined(name, passed, types, returned)

    def written(self, tensor: LazyTensor) -> LazyTensor:
        """
        Returns `tensor` stored as one value of the program. The value may still have to
        be broadcast to the shape of `tensor`.
        """
        return LazyTensor.of(self.build.base(tensor), tensor.shape)

    def free_name(self, name: str) -> str:
        """
        Returns `name` if no function of the new program is called so, else `name` with
        the first free number as suffix.
        """
        taken = {function.sym_name.data for function in self.functions} | {"main"}
        found, number = name, 0
        while found in taken:
            number += 1
            found = f"{name}_{number}"
        return found


class Outlined:
    """
    A function of the new program: its name, the indices of the operands passed to it,
    the types of its results, and the results as tensors.
    """

    def __init__(
        self,
        name: str,
        passed: Sequence[int],
        types: Sequence[Attribute],
        results: Sequence[LazyTensor],
    ):
        self.name = name
        self.passed = passed
        self.types = types
        self.results = results


def _form(tensor: LazyTensor) -> Signature:
    """
    Returns the properties of an operand on which the conversion of a function depends:
    shape, element type, shape of the stored value, and known elements, if any.
    """
    array = tensor.array
    known = None if array is None else (array.shape, np.asarray(array).tobytes())
    return (tensor.shape, str(tensor.element), tensor.base, known)
