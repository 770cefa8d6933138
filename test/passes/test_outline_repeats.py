"""Outlining keeps what a program computes, and finds the layers of generated models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries
from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, OpResult, Region, SSAValue
from xdsl.rewriter import InsertPoint

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import tensor_type
from distir.errors import DistIRError
from distir.passes.inline_calls import InlineCallsPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import entry_function, functions, return_op, scope_of

TYPE = tensor_type([4, 4], f32)


class ProgramBuilder:
    """Builds `@main` over 4x4 matrices, the first arguments being the inputs."""

    def __init__(self, arguments: int):
        self.block = Block(arg_types=[TYPE] * arguments)
        self.builder = Builder(InsertPoint.at_end(self.block))

    def constant(self, value: float) -> SSAValue:
        attributes = {"value": np.full((), value, np.float32)}
        type_ = tensor_type([], f32)
        return self.builder.insert(
            operator("Constant").build_op([], [type_], attributes)
        ).results[0]

    def op(self, name: str, *inputs: SSAValue, scope: str = "") -> SSAValue:
        attributes = {"scope": StringAttr(scope)} if scope else {}
        return self.builder.insert(
            operator(name).build_op(inputs, [TYPE], discardable=attributes)
        ).results[0]

    def finish(self, *results: SSAValue) -> ModuleOp:
        self.builder.insert(ReturnOp(*results))
        types = [a.type for a in self.block.args], [r.type for r in results]
        module = ModuleOp([FuncOp("main", types, Region(self.block))])
        module.verify()
        return module


def outlined(module: ModuleOp, **options: Any) -> ModuleOp:
    copy = module.clone()
    OutlineRepeatsPass(**options).apply(Context(), copy)
    copy.verify()
    return copy


def inlined(module: ModuleOp) -> ModuleOp:
    copy = module.clone()
    InlineCallsPass().apply(Context(), copy)
    copy.verify()
    return copy


def calls(module: ModuleOp, function: str = "main") -> list[str]:
    body = functions(module)[function].body.block
    return [op.callee.string_value() for op in body.ops if isinstance(op, CallOp)]


def computed(module: ModuleOp) -> tuple[list[int], list[int]]:
    """
    What a call-free program returns and every value it computes, numbered by the
    operations and operands that lead to them: equal for two programs iff they compute
    the same terms, however they are ordered and constants are shared.
    """
    numbers: dict[Any, int] = _NUMBERS
    known: dict[SSAValue, int] = {}
    function = entry_function(module)
    for argument in function.body.block.args:
        known[argument] = numbers.setdefault(argument.index, len(numbers))
    values: list[int] = []
    for op in function.body.block.ops:
        if isinstance(op, ReturnOp):
            continue
        for result in op.results:
            key = (
                op.name,
                frozenset(op.properties.items()),
                # A constant is copied for its users, and then has their scope.
                scope_of(op) if op.operands else None,
                result.type,
                result.index,
                tuple(known[operand] for operand in op.operands),
            )
            known[result] = numbers.setdefault(key, len(numbers))
            if op.operands:
                values.append(known[result])
    returned = [known[value] for value in return_op(function).arguments]
    return returned, sorted(values)


_NUMBERS: dict[Any, int] = {}


def assert_kept(before: ModuleOp, after: ModuleOp) -> None:
    assert computed(inlined(after)) == computed(before)


def chain(layers: int, *, shared_mask: bool = False) -> ModuleOp:
    """Blocks of 5 ops; the mask that all share is computed inside the first."""
    program = ProgramBuilder(1 + 2 * layers)
    value, *weights = program.block.args
    two = program.constant(2.0)
    mask = None
    for layer in range(layers):
        scope = f"model.layers.{layer}"
        first, second = weights[2 * layer : 2 * layer + 2]
        norm = program.op("Mul", value, two, scope=f"{scope}.norm")
        up = program.op("MatMul", norm, first, scope=f"{scope}.fc")
        if shared_mask:
            mask = mask or program.op("Neg", program.op("Abs", first))
            up = program.op("Add", up, mask, scope=scope)
        act = program.op("Relu", up, scope=scope)
        down = program.op("MatMul", act, second, scope=f"{scope}.proj")
        value = program.op("Add", value, down, scope=scope)
    return program.finish(program.op("Tanh", value))


@pytest.mark.parametrize("layers", [2, 3, 12, 96])
def test_layers_become_calls(layers: int):
    module = chain(layers)
    result = outlined(module)
    assert calls(result) == ["model_layers"] * layers
    assert len(functions(result)) == 2
    assert_kept(module, result)
    body = functions(result)["model_layers"].body.block
    # The residual value and the two weights go in, the residual value comes out.
    assert len(body.args) == 3
    assert len(return_op(functions(result)["model_layers"]).arguments) == 1
    scopes = [scope_of(op) for op in body.ops if op.operands]
    assert "model.layers.*.fc" in scopes and "model.layers.0.fc" not in scopes
    main = functions(result)["main"].body.block
    assert [scope_of(op) for op in main.ops if isinstance(op, CallOp)] == [
        f"model.layers.{i}" for i in range(layers)
    ]


@pytest.mark.parametrize("layers", [2, 3, 6])
def test_what_all_layers_share_may_stand_in_the_first(layers: int):
    module = chain(layers, shared_mask=True)
    result = outlined(module)
    assert calls(result) == ["model_layers"] * layers
    assert_kept(module, result)


def test_a_layer_that_differs_stays():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for layer in range(5):
        value = program.op("Sqrt" if layer == 0 else "Sin", value)
        for name in ("Cos", "Tanh", "Abs"):
            value = program.op(name, value)
    module = program.finish(value)
    result = outlined(module)
    assert calls(result) == ["repeat0"] * 4
    assert_kept(module, result)


def test_what_one_block_computes_and_the_other_takes_is_no_repeat():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    first = value
    for layer in range(2):
        a = program.op("Sin", value)
        unrelated = program.op("Abs", first)
        b = program.op("Cos", a)
        # The first block uses its own Sin, the second that of the first as well.
        first = a if layer == 0 else first
        c = program.op("Sub", b, first)
        value = program.op("Tanh", c)
        if layer == 0:
            value = program.op("Add", value, unrelated)
    module = program.finish(value, unrelated)
    assert_kept(module, outlined(module, min_ops=2))
    assert calls(outlined(module)) == []


def test_crossed_operands_are_no_repeat():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for layer in range(2):
        a = program.op("Sin", value)
        b = program.op("Cos", a)
        c = program.op("Sub", *((a, b) if layer == 0 else (b, a)))
        value = program.op("Tanh", c)
    module = program.finish(value)
    assert outlined(module).is_structurally_equivalent(module)


def test_different_constants_are_no_repeat():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for layer in range(3):
        factor = program.constant(1.0 + layer // 2)
        value = program.op("Mul", program.op("Sin", value), factor)
        value = program.op("Tanh", program.op("Cos", value))
    module = program.finish(value)
    result = outlined(module)
    assert calls(result) == ["repeat0"] * 2
    assert_kept(module, result)


def test_values_that_only_some_windows_hand_out():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    inner = []
    for _ in range(3):
        inner.append(program.op("Sin", value))
        value = program.op("Add", inner[-1], value)
        value = program.op("Tanh", program.op("Cos", value))
    module = program.finish(value, inner[1])
    result = outlined(module)
    assert calls(result) == ["repeat0"] * 3
    assert len(functions(result)["repeat0"].function_type.outputs) == 2
    assert_kept(module, result)


def test_two_stacks_and_nested_repeats():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for _ in range(3):
        for _ in range(4):
            for name in ("Sin", "Cos", "Tanh", "Abs"):
                value = program.op(name, value)
        value = program.op("Exp", value)
    for _ in range(2):
        for name in ("Relu", "Neg", "Sqrt", "Floor"):
            value = program.op(name, value)
    module = program.finish(value)
    result = outlined(module)
    assert calls(result) == ["repeat0"] * 3 + ["repeat1"] * 2
    assert calls(result, "repeat0") == ["repeat2"] * 4
    assert_kept(module, result)


def test_a_window_elsewhere_calls_the_same_function():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for repetitions in (1, 3):
        for _ in range(repetitions):
            for name in ("Sin", "Cos", "Tanh", "Abs"):
                value = program.op(name, value)
        value = program.op("Exp", value)
    module = program.finish(value)
    result = outlined(module)
    assert calls(result) == ["repeat0"] * 4
    assert_kept(module, result)


def test_independent_repeats_on_request():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    heads = []
    for _ in range(3):
        head = value
        for name in ("Sin", "Cos", "Tanh", "Abs"):
            head = program.op(name, head)
        heads.append(head)
    module = program.finish(*heads)
    assert calls(outlined(module)) == []
    result = outlined(module, independent=True)
    assert calls(result) == ["repeat0"] * 3
    assert_kept(module, result)


def test_short_repeats_need_a_smaller_minimum():
    program = ProgramBuilder(1)
    (value,) = program.block.args
    for _ in range(8):
        value = program.op("Sin", program.op("Cos", value))
    module = program.finish(value)
    assert calls(outlined(module)) == []
    assert calls(outlined(module, min_ops=2)) == ["repeat0"] * 8
    with pytest.raises(DistIRError, match="min-ops"):
        outlined(module, min_ops=1)


UNARY = ("Sin", "Cos", "Tanh", "Abs")
BINARY = ("Add", "Sub", "Mul")


class Example:
    """A program that hypothesis can show."""

    def __init__(self, module: ModuleOp):
        self.module = module

    def __repr__(self) -> str:
        return str(self.module)


@st.composite
def programs(draw: st.DrawFn) -> Example:
    """Random blocks, each repeated with the same inner dataflow, between random ops."""
    program = ProgramBuilder(2)
    values: list[SSAValue] = list(program.block.args)
    constants = [program.constant(0.5), program.constant(2.0)]

    def choice(options: Sequence[Any]) -> Any:
        return options[draw(st.integers(0, len(options) - 1))]

    for _ in range(draw(st.integers(1, 3))):
        recipe = [
            (choice(UNARY + BINARY), draw(st.integers(-3, 3)), draw(st.integers(-3, 3)))
            for _ in range(draw(st.integers(2, 6)))
        ]
        for _ in range(draw(st.integers(1, 4))):
            block = [values[-1]]
            for name, *sources in recipe:
                # Negative: an inner value; otherwise any constant or earlier value.
                operands = [
                    block[max(s, -len(block))]
                    if s < 0
                    else choice(constants + values)
                    if s == 3
                    else (constants + values)[s]
                    for s in sources
                ]
                if name in UNARY:
                    operands = [v for v in operands if v not in constants][:1] or [
                        block[-1]
                    ]
                if all(v in constants for v in operands):
                    operands[0] = block[-1]
                block.append(program.op(name, *operands))
            values += block[1:]
        if draw(st.booleans()):
            values.append(program.op(choice(UNARY), choice(values)))
    results = [values[-1], *(choice(values) for _ in range(draw(st.integers(0, 2))))]
    for position in draw(st.lists(st.integers(0, len(values)), max_size=12)):
        move_up(program.block, position)
    return Example(program.finish(*results))


def move_up(block: Block, position: int) -> None:
    """Moves an op before the one in front of it, unless it needs that one."""
    ops = list(block.ops)
    op, before = ops[position % len(ops)], ops[position % len(ops) - 1]
    if position % len(ops) and all(v.owner is not before for v in op.operands):
        op.detach()
        block.insert_op_before(op, before)


@settings(max_examples=tries(150), deadline=None)
@given(programs(), st.integers(2, 5), st.booleans())
def test_random_programs_are_kept(example: Example, min_ops: int, independent: bool):
    module = example.module
    result = outlined(module, min_ops=min_ops, independent=independent)
    assert_kept(module, result)
    assert all(count >= 2 for count in run_counts(result).values())
    for name, function in functions(result).items():
        ops = [op for op in function.body.block.ops if op.operands]
        # The ops of a function and its return, unless it was shortened by outlining.
        assert name == "main" or calls(result, name) or len(ops) > min_ops


def run_counts(module: ModuleOp) -> Counter[str]:
    """How often each function but @main runs; a function may call others."""
    counts: Counter[str] = Counter()
    pending = calls(module)
    while pending:
        name = pending.pop()
        counts[name] += 1
        pending += calls(module, name)
    return counts


def test_nothing_left_over():
    """Constants that only windows used are gone; those used elsewhere stay."""
    program = ProgramBuilder(1)
    (value,) = program.block.args
    used, also = program.constant(3.0), program.constant(4.0)
    for _ in range(2):
        for constant in (used, also, used, also):
            value = program.op("Mul", value, constant)
        value = program.op("Sin", value)
    result = outlined(program.finish(program.op("Add", value, also)))
    main = functions(result)["main"].body.block
    constants = [op for op in main.ops if op.name == "onnx.Constant"]
    assert len(constants) == 1
    body = functions(result)["repeat0"].body.block
    assert sum(op.name == "onnx.Constant" for op in body.ops) == 2
    assert not any(isinstance(v, OpResult) for v in body.args)
