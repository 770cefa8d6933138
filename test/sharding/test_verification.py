"""Every single mistake in a distributed GPT-2 is found, by name."""

import functools
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import imported
from support.random_programs import Draw, arguments_of, assert_same_results, programs
from support.thoroughness import IS_THOROUGH, tries
from support.training_programs import distributed, training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import Layout, LayoutAttr, Shard, layout_of, with_layout
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import argument_names, functions, reachable_functions
from distir.sharding.layout import check_layout, places_the_same
from distir.sharding.mesh import meshes
from distir.sharding.verification import verify_distribution

EXPECTED = re.compile(r"expected")


@functools.cache
def distributed_gpt2() -> ModuleOp:
    """GPT-2 over d=2, t=2 (2 layers; two different stages of split)."""
    module = imported("gpt2").module.clone()
    context = Context()
    OutlineRepeatsPass().apply(context, module)
    DistributePass(d=2, t=2).apply(context, module)
    return module


def communication(module: ModuleOp) -> list[Operation]:
    return [op for op in module.walk() if isinstance(op, CollectiveOp | dist.SendOp)]


def refused(module: ModuleOp, names: set[str]) -> None:
    """The verifier refuses the module, naming one of the ops and an expected layout."""
    with pytest.raises(DistIRError) as error:
        verify_distribution(module)
    message = str(error.value)
    assert any(name in message for name in names), message
    assert EXPECTED.search(message), message


def test_the_program_itself_is_right() -> None:
    module = distributed_gpt2()
    verify_distribution(module)
    assert len(communication(module)) >= 2


def assert_each_collective_is_missed(original: ModuleOp) -> None:
    for index in range(0, len(communication(original)), 1 if IS_THOROUGH else 4):
        module = original.clone()
        op = communication(module)[index]
        names = {use.operation.name for use in op.results[0].uses}
        op.results[0].replace_all_uses_with(op.operands[0])
        Rewriter.erase_op(op)
        refused(module, names)


def test_deleting_any_one_collective_is_found() -> None:
    assert_each_collective_is_missed(distributed_gpt2())


STRATEGIES: dict[str, dict[str, Any]] = {
    "d4": {"d": 4},
    "d2-t2": {"d": 2, "t": 2},
    "zero1": {"d": 2, "t": 2, "zero": 1},
    "zero2": {"d": 4, "zero": 2},
    "zero3-full": {"d": 4, "zero": 3, "checkpoint": "full"},
    "sp": {"d": 2, "t": 2, "zero": 1, "checkpoint": "full", "sequence_parallel": True},
}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(s, marks=pytest.mark.slow if s in ("zero1", "zero2") else ())
        for s in STRATEGIES
    ],
)
def test_deleting_any_one_collective_of_a_training_step_is_found(
    strategy: str,
) -> None:
    """No gradient is left without its reduction, whatever the strategy."""
    module = distributed(training_gpt(), **STRATEGIES[strategy])
    names = {op.name for op in communication(module)}
    assert names & {"collective.all_reduce", "collective.reduce_scatter"}
    assert_each_collective_is_missed(module)


def other_layouts(value: SSAValue, module: ModuleOp) -> list[Layout]:
    """
    Layouts that place other elements and that the tensor's shape allows: each axis
    elsewhere or nowhere.
    """
    layout, type_ = layout_of(value), value.type
    assert layout is not None and isinstance(type_, TensorType)
    mesh = meshes(module)[layout.mesh]
    shape = type_.get_shape()
    found: list[Layout] = []
    for axis, _ in mesh.axes:
        dims = tuple(
            tuple(s for s in dim if s.axis != axis)
            for dim in layout.full_dims(len(shape))
        )
        bare = Layout(mesh.name, dims, layout.without_partial([axis]).partial)
        found.append(bare)
        found += [
            bare.with_dim(d, (*bare.dim(d), Shard(axis)), len(shape))
            for d in range(len(shape))
        ]
        found.append(Layout(mesh.name, bare.dims, (*bare.partial, (axis, "sum"))))
    allowed: list[Layout] = []
    for candidate in dict.fromkeys(found):
        if candidate == layout:
            continue
        try:
            check_layout(shape, candidate, mesh, "")
        except DistIRError:
            continue
        if not places_the_same(shape, candidate, layout, mesh):
            allowed.append(candidate)
    return allowed


def relayout(value: SSAValue, layout: Layout) -> None:
    type_ = value.type
    assert isinstance(type_, TensorType)
    Rewriter.replace_value_with_new_type(value, with_layout(type_, layout))


def test_changing_any_one_layout_is_found() -> None:
    original = distributed_gpt2()
    seen = tried = 0
    for name, function in functions(original).items():
        for position, op in enumerate(function.body.block.ops):
            for r, result in enumerate(op.results):
                if not list(result.uses):
                    continue
                for layout in other_layouts(result, original):
                    seen += 1
                    if seen % 8 and not IS_THOROUGH:
                        continue
                    module = original.clone()
                    changed = list(functions(module)[name].body.block.ops)[position]
                    relayout(changed.results[r], layout)
                    users = {use.operation.name for use in changed.results[r].uses}
                    refused(module, {changed.name, *users})
                    tried += 1
    assert seen > 200 and tried >= seen // 8


def change_argument(function: FuncOp, index: int, layout: Layout) -> set[str]:
    arg = function.body.block.args[index]
    relayout(arg, layout)
    arg = function.body.block.args[index]
    inputs = list(function.function_type.inputs.data)
    inputs[index] = arg.type
    function.properties["function_type"] = FunctionType.from_lists(
        inputs, function.function_type.outputs.data
    )
    return {use.operation.name for use in arg.uses} | {"func.call"}


RIGHT_ALL_THE_SAME = {("main", "transformer.wpe.weight", "<@mesh, partial sum {t}>")}
"""
Arguments whose layout may be another one. Rows of a split table that a device lacks are
zeros, so that what is gathered is a partial sum over `t`; what is gathered from parts that
add up to the table is one as well.
"""


def test_changing_any_one_argument_is_found() -> None:
    """Where it is not, it is because the program still computes the same."""
    original = distributed_gpt2()
    seen, tried, right = 0, 0, set[tuple[str, str, str]]()
    for name, function in functions(original).items():
        names = argument_names(function)
        for index, arg in enumerate(function.body.block.args):
            if not list(arg.uses):
                continue
            for layout in other_layouts(arg, original):
                change = (name, names[index], str(layout))
                seen += 1
                if seen % 8 and change not in RIGHT_ALL_THE_SAME and not IS_THOROUGH:
                    continue
                module = original.clone()
                users = change_argument(functions(module)[name], index, layout)
                tried += 1
                if change not in RIGHT_ALL_THE_SAME:
                    refused(module, users)
                    continue
                verify_distribution(module)
                assert_same_results(original, module, random_arguments(original, 0))
                right.add(change)
    assert seen > 50 and tried >= seen // 8 and right == RIGHT_ALL_THE_SAME


def test_a_sequential_tensor_in_a_distributed_program() -> None:
    module = distributed_gpt2().clone()
    function = functions(module)["main"]
    arg = function.body.block.args[0]
    assert isinstance(arg.type, TensorType) and isinstance(
        arg.type.encoding, LayoutAttr
    )
    plain = TensorType(arg.type.element_type, arg.type.shape.data)
    Rewriter.replace_value_with_new_type(arg, plain)
    with pytest.raises(DistIRError, match=r"expected|no layout"):
        verify_distribution(module)


def mutated(module: ModuleOp, draw: Draw) -> ModuleOp | None:
    """The module with one random mistake; None where the draw does not fit."""
    clone = module.clone()
    kind = draw(st.sampled_from(["collective", "result", "argument"]))
    if kind == "collective":
        ops = communication(clone)
        if not ops:
            return None
        op = draw(st.sampled_from(ops))
        op.results[0].replace_all_uses_with(op.operands[0])
        Rewriter.erase_op(op)
        return clone
    function = draw(st.sampled_from(reachable_functions(clone)))
    values: list[SSAValue] = list(function.body.block.args)
    if kind == "result":
        values = [r for op in function.body.block.ops for r in op.results]
    values = [v for v in values if other_layouts(v, clone)]
    if not values:
        return None
    value = draw(st.sampled_from(values))
    layout = draw(st.sampled_from(other_layouts(value, clone)))
    if isinstance(value, BlockArgument):
        change_argument(function, value.index, layout)
    else:
        relayout(value, layout)
    return clone


@settings(
    max_examples=tries(60), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.sampled_from([(2, 2), (1, 4), (4, 2)]), st.data())
def test_what_is_verified_computes_the_same(
    module: ModuleOp, degrees: tuple[int, int], data: st.DataObject
) -> None:
    """A mistake in a random program is found, or it does not matter."""
    DistributePass(d=degrees[0], t=degrees[1]).apply(Context(), module)
    for _ in range(4):
        other = mutated(module, data.draw)
        if other is None:
            continue
        try:
            verify_distribution(other)
        except DistIRError:
            continue
        assert_same_results(module, other, arguments_of(module))
