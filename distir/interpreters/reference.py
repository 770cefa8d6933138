"""
The reference interpreter: runs a program on NumPy arrays, in one process.

A value of a sequential program is an array. A value of a distributed program is the
stack of its shards over the mesh (`Sharded`). A distributed op runs once for each
device, in the local form that `distir.sharding.local` gives, as in that device's
projection. Collectives exchange the shards. To check a pass, run the program before and
after it, and compare the results.

Ops of other dialects can run once a function on arrays is registered. In a distributed
program, the function gets the shards of one device at a time:

```python
@reference_function("toy.scale")
def scale(op, x):
    return x * 2
```

`@register_reference_implementations` registers a class of xDSL's `InterpreterFunctions`,
which does the same for many ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.collective import Collective
from distir.dialects.dist import Dist, layout_of
from distir.dialects.kernel import KernelCallOp, KernelDefOp, kernel_of
from distir.dialects.onnx import OPERATORS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.registries import Registry, load_support, name_of
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.interpreters.functions import ProgramFunctions, call_by_name
from distir.interpreters.implementations import registered_implementations
from distir.interpreters.joint_ops import joint_op, results_on
from distir.interpreters.onnx_evaluator import evaluate
from distir.interpreters.reference_communication import CommunicationFunctions
from distir.interpreters.sharded import Sharded, from_shards
from distir.interpreters.spmd import is_for_all_ranks, runner_for_all_ranks
from distir.program import argument_names, describe, entry_function, functions
from distir.program.source_forms import SourceForm, argument_forms, result_forms
from distir.sharding.kernel_parts import parts_of, reference_part, rule_of
from distir.sharding.layout import local_type
from distir.sharding.local import local_form, local_ops, mesh_of_op
from distir.sharding.mesh import Mesh, meshes

_Shapes = tuple[tuple[int, ...], ...]


@register_impls
class KernelFunctions(InterpreterFunctions):
    """
    Runs the kernel calls of a program by interpreting the kernels' reference ops. The
    user's kernel functions are not loaded.
    """

    def __init__(self, module: ModuleOp):
        self._module = module
        self._parts: dict[tuple[str, _Shapes], tuple[Block, tuple[SSAValue, ...]]] = {}

    @impl(KernelCallOp)
    def call(
        self, interpreter: Interpreter, op: KernelCallOp, args: PythonValues
    ) -> PythonValues:
        """Returns the results of the called kernel's reference ops on `args`."""
        shapes = tuple(shape_of(value.type) for value in op.inputs)
        key = op.symbol, shapes
        if key not in self._parts:
            self._parts[key] = _part(kernel_of(self._module, op), shapes)
        block, results = self._parts[key]
        values: dict[SSAValue, Any] = dict(zip(block.args, args, strict=True))
        for inner in block.ops:
            if inner.results:
                given = tuple(values[v] for v in inner.operands)
                found = ProgramFunctions.run_one(interpreter, inner, given)
                values.update(zip(inner.results, found, strict=True))
        return tuple(values[v] for v in results)


def _part(kernel: KernelDefOp, shapes: _Shapes) -> tuple[Block, tuple[SSAValue, ...]]:
    """
    Returns the block of a kernel's reference ops for operands of `shapes`, and the
    block's result values. If the operands are one device's parts of tensors, `shapes`
    are smaller than the kernel's own shapes, and the block is rewritten for them.
    Raises DistIRError if the block cannot be rewritten.
    """
    block = kernel.reference.block
    parts = parts_of(kernel, shapes)
    if not parts:
        return block, tuple(kernel.result.values)
    found = reference_part(block, rule_of(kernel), parts)
    if isinstance(found, str):
        raise DistIRError(f"kernel @{kernel.symbol}: {found}")
    return found.block, found.results


ReferenceFunction = Callable[..., Any]

reference_function = Registry[ReferenceFunction](__name__)
"""
Registers the function that computes ops with the given names on NumPy arrays. It is
called with the op and one array per operand, and returns the array of the result, or a
tuple of arrays if the op has another number of results. Their elements are cast to the
types of the results.
"""


def _computed(
    op: Operation, function: ReferenceFunction, args: PythonValues
) -> PythonValues:
    """
    Returns the results of a reference function. Raises DistIRError if the number of
    results is wrong, or if a result has a shape other than its type's.
    """
    with np.errstate(all="ignore"):
        found = function(op, *args)
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(op.results):
        raise DistIRError(
            f"{describe(op)}: its reference gives {len(results)} results, but the op has "
            f"{len(op.results)}"
        )
    return tuple(
        _typed(op, i, value, result.type)
        for i, (value, result) in enumerate(zip(results, op.results, strict=True))
    )


def _typed(op: Operation, index: int, value: Any, type_: Attribute) -> Any:
    """
    Returns `value` as an array of the type of the result `index`. If `type_` is not a
    tensor type, `value` is returned unchanged.
    """
    if not isinstance(type_, TensorType):
        return value
    array = np.asarray(value)
    shape = type_.get_shape()
    if array.ndim != len(shape) or any(
        n not in (-1, size) for n, size in zip(shape, array.shape, strict=True)
    ):
        raise DistIRError(
            f"{describe(op)}: its reference gives an array of shape {list(array.shape)} "
            f"for result {index}, whose type has shape {list(shape)}"
        )
    return array.astype(numpy_dtype(type_.element_type), copy=False)


def run_program(
    module: ModuleOp, arguments: Sequence[Any], function: str | None = None
) -> list[Any]:
    """
    Runs a function of a sequential or distributed program and returns its results.
    `function` is the function's name; by default the entry function runs. Arguments and
    results are global arrays, whatever their layouts, in the function's order and with
    the shapes of the source model (`distir.program.source_forms`); sequences are lists.
    Raises DistIRError if there is no such function, if the arguments do not fit the
    function's types, or if an op cannot run.
    """
    return program_runner(module, function)(arguments)


def program_runner(
    module: ModuleOp, function: str | None = None
) -> Callable[[Sequence[Any]], list[Any]]:
    """
    Returns a function that takes the arguments of a program and returns its results, as
    `run_program` does. Use it for a program that runs more than once, such as a
    training step: the local form of each op on each device is derived only once. The
    program must not change between runs.
    """
    known = functions(module)
    target = entry_function(module) if function is None else known.get(function)
    if target is None:
        raise DistIRError(f"the program has no function @{function}")
    interpreter = ReferenceInterpreter(module)
    if is_for_all_ranks(module):
        return runner_for_all_ranks(module, target, interpreter.run_op)
    name = target.sym_name.data
    types = target.function_type.inputs.data
    names = argument_names(target)
    given, returned = argument_forms(target), result_forms(target)

    def run(arguments: Sequence[Any]) -> list[Any]:
        if len(arguments) != len(types):
            raise DistIRError(
                f"@{name} takes {len(types)} arguments, got {len(arguments)}"
            )
        values = [
            interpreter.argument(value, type_, argument_name, form)
            for value, type_, argument_name, form in zip(
                arguments, types, names, given, strict=True
            )
        ]
        results = call_by_name(interpreter, name, values)
        whole = [v.assemble() if isinstance(v, Sharded) else v for v in results]
        return [
            value if form is None else form.source(value)
            for value, form in zip(whole, returned, strict=True)
        ]

    return run


@dataclass(frozen=True)
class PerDevice:
    """
    A distributed value that is not a tensor, such as a sequence. `shards` holds the
    value of each device.
    """

    shards: tuple[Any, ...]


@register_impls
class OnnxFunctions(InterpreterFunctions):
    """Runs every operator of `onnx` on arrays."""

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        return ((op_type, cls.run) for op_type in OPERATORS.values())

    def run(
        self, interpreter: Interpreter, op: OnnxOp, args: PythonValues
    ) -> OpImplResult:
        operands = iter(args)
        inputs = [None if v is None else next(operands) for v in op.input_values]
        return OpImplResult(tuple(evaluate(op, inputs)), None)


@dataclass
class _LocalProgram:
    """
    The ops that one device runs for a distributed op, with the block that holds them.
    """

    block: Block
    ops: Sequence[Operation]


@dataclass
class ReferenceInterpreter(Interpreter):
    """
    xDSL's interpreter for values that are arrays or stacks of shards. It caches the
    local form of each op on each device, and the values of constants, so the program
    must not change while the interpreter is in use.
    """

    meshes: Mapping[str, Mesh] = field(default_factory=dict[str, Mesh])
    _constants: dict[Operation, PythonValues] = field(
        default_factory=dict[Operation, PythonValues]
    )
    _local: dict[tuple[Operation, tuple[int, ...]], _LocalProgram] = field(
        default_factory=dict[tuple[Operation, tuple[int, ...]], _LocalProgram]
    )

    def __post_init__(self) -> None:
        import distir.interpreters.train  # noqa: F401  # pyright: ignore[reportUnusedImport]

        self.meshes = meshes(self.module)
        for name in {name_of(op) for op in self.module.walk()}:
            load_support(name)
        for implementations in (
            ProgramFunctions(functions(self.module)),
            OnnxFunctions(),
            CommunicationFunctions(self.meshes),
            KernelFunctions(self.module),
        ):
            self.register_implementations(implementations)
        for functions_class in registered_implementations:
            self.register_implementations(functions_class(), override=True)

    def argument(
        self, value: Any, type_: Attribute, name: str, form: SourceForm | None = None
    ) -> Any:
        """
        Returns `value`, a global value in the form of the source model, as a function
        argument of type `type_`. If `form` is given, it says how to pad or flatten the
        value. Raises DistIRError, naming the argument `name`, if the value's shape or
        element type does not fit.
        """
        if not isinstance(type_, TensorType):
            return value
        array = np.asarray(value)
        dtype = numpy_dtype(type_.element_type)
        shape = type_.get_shape() if form is None else form.shape
        fits = len(shape) == array.ndim and all(
            d < 0 or d == n for d, n in zip(shape, array.shape, strict=True)
        )
        strings = dtype.kind == "O" and array.dtype.kind in "OUS"
        if not fits or (array.dtype != dtype and not strings):
            raise DistIRError(
                f"argument {name!r} is {array.dtype}{list(array.shape)}, but the program "
                f"takes {dtype}{list(shape)}"
            )
        if form is not None:
            array = form.stored(array)
        if layout_of(type_) is None:
            return array
        return Sharded.split(array, type_, self.meshes)

    def run_op(self, op: Any, inputs: PythonValues = ()) -> PythonValues:
        """
        Runs an op and returns its results. A distributed op runs once for each group of
        devices that hold the same operands.
        """
        if op in self._constants:
            return self._constants[op]
        if not isinstance(op, Operation) or not self._is_distributed(op, inputs):
            function = reference_function.of(op)
            if function is not None:
                return _computed(op, function, inputs)
            results = super().run_op(op, inputs)
        else:
            results = self._run_distributed(op, inputs)
        if isinstance(op, OnnxOp) and op.name == "onnx.Constant":
            self._constants[op] = results
        return results

    @staticmethod
    def _is_distributed(op: Operation, inputs: PythonValues) -> bool:
        if isinstance(op, CallOp) or op.dialect_name() in (Dist.name, Collective.name):
            return False
        return any(isinstance(v, Sharded | PerDevice) for v in inputs) or any(
            layout_of(r) is not None for r in op.results
        )

    def _run_distributed(self, op: Operation, inputs: PythonValues) -> PythonValues:
        mesh = mesh_of_op(op, self.meshes)
        if mesh is None:
            raise DistIRError(
                f"{describe(op)} works on distributed values, but no type says on which "
                "mesh"
            )
        if joint_op.get(op.name) is not None:
            return self._results(op, self._run_jointly(op, inputs, mesh))
        axes = self._distinguishing_axes(op, inputs, mesh)
        known: dict[tuple[int, ...], PythonValues] = {}
        per_device: list[PythonValues] = []
        for index, coordinates in enumerate(mesh.coordinates):
            key = tuple(coordinates[axis] for axis in axes)
            if key not in known:
                program = self._local_program(op, key, coordinates)
                shards = tuple(self._shard(op, value, index, mesh) for value in inputs)
                known[key] = self._run_local(op, program, shards)
            per_device.append(known[key])
        return self._results(op, per_device)

    def _run_jointly(
        self, op: Operation, inputs: PythonValues, mesh: Mesh
    ) -> list[PythonValues]:
        """
        Runs an op in which devices exchange values, and returns its results on each
        device.
        """
        members: list[tuple[Operation, PythonValues]] = []
        for index, coordinates in enumerate(mesh.coordinates):
            key = tuple(coordinates.values())
            (local,) = self._local_program(op, key, coordinates).ops
            shards = tuple(self._shard(op, value, index, mesh) for value in inputs)
            members.append((local, shards))
        return results_on(mesh, members)

    def _results(
        self, op: Operation, per_device: Sequence[PythonValues]
    ) -> PythonValues:
        """
        Returns the results of a distributed op, assembled from `per_device`, the
        results on each device.
        """
        results: list[Any] = []
        for result, shards in zip(
            op.results, zip(*per_device, strict=True), strict=True
        ):
            if layout_of(result) is None:
                results.append(PerDevice(shards))
                continue
            value = from_shards(shards, result.type, self.meshes)
            value.check(describe(op))
            results.append(value)
        return tuple(results)

    @staticmethod
    def _distinguishing_axes(
        op: Operation, inputs: PythonValues, mesh: Mesh
    ) -> list[str]:
        """
        Returns the mesh axes along which the results of `op` may differ: the axes of
        its operands' and results' layouts, or all axes if an operand is not a tensor.
        """
        if any(isinstance(value, PerDevice) for value in inputs):
            return [axis for axis, _ in mesh.axes]
        layouts = [layout_of(v) for v in (*op.operands, *op.results)]
        used = {
            axis
            for layout in layouts
            if layout is not None
            for axis in (*layout.split_axes, *layout.partial_axes)
        }
        return [axis for axis, _ in mesh.axes if axis in used]

    @staticmethod
    def _shard(op: Operation, value: Any, index: int, mesh: Mesh) -> Any:
        if isinstance(value, PerDevice):
            return value.shards[index]
        if isinstance(value, Sharded):
            if value.mesh.name != mesh.name:
                raise DistIRError(
                    f"{describe(op)} works on mesh @{mesh.name}, but an operand lives on "
                    f"@{value.mesh.name}; send it there first"
                )
            return value.shards[index]
        return value

    def _local_program(
        self, op: Operation, key: tuple[int, ...], coordinates: Mapping[str, int]
    ) -> _LocalProgram:
        if local_form.of(op) is None:  # the op itself, wherever the device is
            key = ()
        found = self._local.get((op, key))
        if found is None:
            block = Block(
                arg_types=[local_type(v.type, self.meshes) for v in op.operands]
            )
            ops = local_ops(op, block.args, self.meshes, coordinates)
            found = self._local[op, key] = _LocalProgram(block, ops)
        return found

    def _run_local(
        self, op: Operation, program: _LocalProgram, shards: PythonValues
    ) -> PythonValues:
        values: dict[SSAValue, Any] = dict(zip(program.block.args, shards, strict=True))
        results: PythonValues = ()
        for local in program.ops:
            results = ProgramFunctions.run_one(
                self, local, tuple(values[v] for v in local.operands)
            )
            values.update(zip(local.results, results, strict=True))
        return results
