"""Random small sequential programs for property tests: functions, calls, requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    i1,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.onnx import operator
from distir.interpreters.reference import run_program
from distir.program import argument_roles, entry_function
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh

Draw = Callable[[st.SearchStrategy[Any]], Any]

TABLE = 4
"""
Integers of a program are below this, so that they index any table of at least that size.
"""


def shape_of(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.get_shape()


@dataclass
class ProgramBuilder:
    """Appends ops to a function; `values` (all f32) are what later ops can use."""

    draw: Draw
    functions: list[FuncOp] = field(default_factory=list[FuncOp])
    """The functions that the function may call."""
    mesh: Mesh | None = None
    """If given, values may be constrained to layouts on this mesh."""
    block: Block = field(default_factory=Block)
    roles: list[str] = field(default_factory=list[str])
    values: list[SSAValue] = field(default_factory=list[SSAValue])

    def argument(
        self, role: str, shape: Sequence[int], element: Attribute = f32
    ) -> SSAValue:
        self.roles.append(role)
        return self.block.insert_arg(TensorType(element, shape), len(self.block.args))

    def parameter(self, shape: Sequence[int]) -> SSAValue:
        """Returns a new parameter, or one of that shape that is used already."""
        tied = [
            arg
            for arg, role in zip(self.block.args, self.roles, strict=True)
            if role == "parameter" and shape_of(arg) == tuple(shape)
        ]
        if tied and self.draw(st.booleans()):
            return self.draw(st.sampled_from(tied))
        return self.argument("parameter", shape)

    def op(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        shape: Sequence[int],
        element: Attribute = f32,
        **attributes: Any,
    ) -> SSAValue:
        return self.ops(name, inputs, [shape], element, **attributes)[0]

    def ops(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        shapes: Sequence[Sequence[int]],
        element: Attribute = f32,
        **attributes: Any,
    ) -> list[SSAValue]:
        types = [TensorType(element, shape) for shape in shapes]
        op = operator(name).build_op(inputs, types, attributes)
        self.block.add_op(op)
        return list(op.results)

    def constant(self, values: npt.ArrayLike, element: Attribute = i64) -> SSAValue:
        dtype = {f32: np.float32, i64: np.int64, i1: np.bool_}[element]
        array = np.asarray(values, dtype)
        return self.op("Constant", [], array.shape, element, value=array)

    def call(self, function: FuncOp, x: SSAValue) -> list[SSAValue]:
        """Calls a function on a value and parameters."""
        roles = argument_roles(function)
        arguments = [
            x if i == 0 else self._argument_like(type_, role)
            for i, (type_, role) in enumerate(
                zip(function.function_type.inputs.data, roles, strict=True)
            )
        ]
        outputs = function.function_type.outputs.data
        call = CallOp(function.sym_name.data, arguments, list(outputs))
        self.block.add_op(call)
        return list(call.results)

    def _argument_like(self, type_: Attribute, role: str) -> SSAValue:
        assert isinstance(type_, TensorType)
        if role == "parameter":
            return self.parameter(type_.get_shape())
        return self.argument(role, type_.get_shape(), type_.element_type)

    def constrain(self, x: SSAValue) -> SSAValue:
        assert self.mesh is not None
        op = ConstrainOp(x, self.draw(layouts(shape_of(x), self.mesh)))
        self.block.add_op(op)
        return op.result

    def function(self, name: str, results: Sequence[SSAValue]) -> FuncOp:
        self.block.add_op(ReturnOp(*results))
        return FuncOp(
            name,
            ([a.type for a in self.block.args], [r.type for r in results]),
            Region(self.block),
            arg_attrs=ArrayAttr(
                [
                    DictionaryAttr(
                        {
                            "dist.role": StringAttr(role),
                            "dist.name": StringAttr(f"a{i}"),
                        }
                    )
                    for i, role in enumerate(self.roles)
                ]
            ),
        )


@st.composite
def layouts(draw: Draw, shape: Sequence[int], mesh: Mesh) -> Layout:
    """
    Returns a random layout without partial axes, with a dimension's axes in the mesh's
    order.
    """
    layout = Layout(mesh.name)
    for axis, _ in mesh.axes:
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim < 0:
            continue
        run = draw(st.sampled_from([None, None, 1, 2]))
        shards = (*layout.dim(dim), Shard(axis, run))
        split = layout.with_dim(dim, shards, len(shape))
        if fits(shape, split, mesh):
            layout = canonical(shape, split, mesh)
    return layout


def build(
    draw: Draw,
    builder: ProgramBuilder,
    name: str,
    shape: Sequence[int],
    max_ops: int,
    steps: Sequence[Callable[[ProgramBuilder, SSAValue], Sequence[SSAValue]]],
) -> FuncOp:
    """Returns a random function of one input of that shape (and parameters)."""
    builder.values.append(builder.argument("input", shape))
    for _ in range(draw(st.integers(2, max_ops))):
        x = draw(st.sampled_from(builder.values[-4:]))
        callable_ = [
            f for f in builder.functions if f.function_type.inputs.data[0] == x.type
        ]
        if callable_ and draw(st.booleans()):
            builder.values += builder.call(draw(st.sampled_from(callable_)), x)
        elif builder.mesh is not None and draw(st.integers(0, 4)) == 0:
            builder.values.append(builder.constrain(x))
        else:
            builder.values += draw(st.sampled_from(steps))(builder, x)
    if draw(st.integers(0, 3)) == 0:
        builder.argument("parameter", (4, 4))  # which nothing uses
    results = [builder.values[-1]]
    results += draw(st.lists(st.sampled_from(builder.values), max_size=2))
    return builder.function(name, results)


@st.composite
def programs(draw: Draw, max_ops: int = 10, mesh: Mesh | None = None) -> ModuleOp:
    """
    Returns a random program with parameters; its first input has a batch dimension.
    Functions may be called several times. With a mesh, values are constrained to random
    layouts.
    """
    from support.random_ops import STEPS

    shape = (draw(st.sampled_from([4, 8])), 4, draw(st.sampled_from([4, 6, 8])))
    functions: list[FuncOp] = []
    for i in range(draw(st.integers(0, 2))):
        builder = ProgramBuilder(draw, list(functions), mesh)
        functions.append(build(draw, builder, f"f{i}", shape, 5, STEPS))
    builder = ProgramBuilder(draw, functions, mesh)
    main = build(draw, builder, "main", shape, max_ops, STEPS)
    module = ModuleOp([*functions, main])
    module.verify()
    return module


def arguments_of(module: ModuleOp, seed: int = 0) -> list[npt.NDArray[Any]]:
    """Returns values for the arguments of a random program."""
    generator = np.random.default_rng(seed)
    found: list[npt.NDArray[Any]] = []
    for arg in entry_function(module).body.block.args:
        shape = shape_of(arg)
        assert isinstance(arg.type, TensorType)
        if arg.type.element_type == f32:
            scale = max(1, prod(shape[:-1])) ** 0.5
            array = generator.normal(size=shape) / (scale if len(shape) > 1 else 1)
            found.append(array.astype(np.float32))
        elif arg.type.element_type == i64:
            found.append(generator.integers(0, TABLE, shape))
        else:
            found.append(generator.integers(0, 2, shape).astype(np.bool_))
    return found


def assert_same_results(
    module: ModuleOp, other: ModuleOp, arguments: Sequence[npt.NDArray[Any]]
) -> None:
    """
    Checks that both programs compute the same, up to the rounding of the largest numbers.
    """
    expected, actual = run_program(module, arguments), run_program(other, arguments)
    for a, b in zip(expected, actual, strict=True):
        largest = float(np.max(np.abs(a), initial=1e-3))
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * largest)
