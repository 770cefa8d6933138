"""Random small sequential programs for property tests."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from distir.dialects.onnx import operator

SIZES = (1, 2, 3, 4, 6, 8)


class ProgramBuilder:
    """Appends ops to a function; values are kept so that later ops can use them."""

    def __init__(self, batch: int, width: int) -> None:
        self.block = Block()
        self.roles: list[str] = []
        self.values: list[SSAValue] = [self.argument("input", (batch, 4, width))]

    def argument(self, role: str, shape: tuple[int, ...]) -> SSAValue:
        self.roles.append(role)
        return self.block.insert_arg(TensorType(f32, shape), len(self.block.args))

    def op(
        self, name: str, inputs: list[SSAValue], shape: tuple[int, ...], **attributes: Any
    ) -> SSAValue:
        op = operator(name).build_op(inputs, [TensorType(f32, shape)], attributes)
        self.block.add_op(op)
        return op.results[0]

    def constant(self, values: list[int]) -> SSAValue:
        from xdsl.dialects.builtin import i64

        op = operator("Constant").build_op(
            [], [TensorType(i64, [len(values)])], {"value": np.array(values, np.int64)}
        )
        self.block.add_op(op)
        return op.results[0]

    def module(self, results: list[SSAValue]) -> ModuleOp:
        self.block.add_op(ReturnOp(*results))
        function = FuncOp(
            "main",
            ([a.type for a in self.block.args], [r.type for r in results]),
            Region(self.block),
            arg_attrs=ArrayAttr(
                [
                    DictionaryAttr(
                        {"dist.role": StringAttr(role), "dist.name": StringAttr(f"a{i}")}
                    )
                    for i, role in enumerate(self.roles)
                ]
            ),
        )
        return ModuleOp([function])


def shape_of(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.get_shape()


Draw = Callable[[st.SearchStrategy[Any]], Any]


def _step(program: ProgramBuilder, draw: Draw) -> SSAValue | list[SSAValue] | None:
    """One random op on a random value; None where the draw does not fit."""
    x = draw(st.sampled_from(program.values))
    shape = shape_of(x)
    kind = draw(
        st.sampled_from(
            [
                "unary",
                "add",
                "multiply",
                "matmul",
                "gemm",
                "bias",
                "transpose",
                "reshape",
                "softmax",
                "norm",
                "reduce",
                "split",
                "attention",
            ]
        )
    )
    match kind:
        case "unary":
            name = draw(st.sampled_from(["Relu", "Tanh", "Neg", "Sigmoid", "Identity"]))
            return program.op(name, [x], shape)
        case "add" | "multiply":
            others = [v for v in program.values if shape_of(v) == shape]
            y = draw(st.sampled_from(others))
            return program.op("Add" if kind == "add" else "Mul", [x, y], shape)
        case "matmul":
            width = draw(st.sampled_from(SIZES))
            w = program.argument("parameter", (shape[-1], width))
            return program.op("MatMul", [x, w], (*shape[:-1], width))
        case "gemm":
            width = draw(st.sampled_from(SIZES))
            rows = prod(shape[:-1])
            flat = program.op(
                "Reshape", [x, program.constant([rows, shape[-1]])], (rows, shape[-1])
            )
            w = program.argument("parameter", (width, shape[-1]))
            b = program.argument("parameter", (width,))
            return program.op("Gemm", [flat, w, b], (rows, width), transB=1)
        case "bias":
            b = program.argument("parameter", (shape[-1],))
            return program.op("Add", [x, b], shape)
        case "transpose":
            perm = draw(st.permutations(range(len(shape))))
            return program.op("Transpose", [x], tuple(shape[p] for p in perm), perm=perm)
        case "reshape":
            n = prod(shape)
            first = draw(st.sampled_from([s for s in SIZES if n % s == 0]))
            new = draw(st.sampled_from([(first, n // first), (n // first, first)]))
            return program.op("Reshape", [x, program.constant(list(new))], new)
        case "softmax":
            axis = draw(st.integers(-len(shape), len(shape) - 1))
            return program.op("Softmax", [x], shape, axis=axis)
        case "norm":
            scale = program.argument("parameter", (shape[-1],))
            return program.op("LayerNormalization", [x, scale], shape, axis=-1)
        case "reduce":
            if len(shape) < 3:
                return None
            axis = draw(st.integers(0, len(shape) - 1))
            name = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax"]))
            kept = tuple(1 if i == axis else s for i, s in enumerate(shape))
            return program.op(name, [x, program.constant([axis])], kept, keepdims=1)
        case "split":
            if shape[-1] % 2:
                return None
            half = (*shape[:-1], shape[-1] // 2)
            op = operator("Split").build_op(
                [x], [TensorType(f32, half)] * 2, {"axis": -1, "num_outputs": 2}
            )
            program.block.add_op(op)
            return list(op.results)
        case _:
            if len(shape) != 3:
                return None
            turned = (shape[0], shape[2], shape[1])
            y = program.op("Transpose", [x], turned, perm=[0, 2, 1])
            return program.op("MatMul", [x, y], (shape[0], shape[1], shape[1]))


@st.composite
def programs(draw: Draw, max_ops: int = 10) -> ModuleOp:
    """A random program with parameters; its first input has a batch dimension."""
    program = ProgramBuilder(
        draw(st.sampled_from([4, 8])), draw(st.sampled_from([4, 6, 8]))
    )
    for _ in range(draw(st.integers(2, max_ops))):
        made = _step(program, draw)
        if isinstance(made, SSAValue):
            program.values.append(made)
        elif made is not None:
            program.values += made
    results = [program.values[-1]]
    results += draw(
        st.lists(st.sampled_from(program.values), max_size=2, unique=True)
    )
    return program.module(list(dict.fromkeys(results)))
