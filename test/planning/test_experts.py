"""Experts on axis "e": the same results, and tokens on the shorter way."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from support.expert_models import (
    BATCH,
    LENGTH,
    expert_model,
    experts_step,
    imported_experts,
)
from support.pipelines import assert_same, distributed
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16, f32, i64

from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllToAllOp,
    RaggedAllToAllOp,
)
from distir.dialects.device import ClusterOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    GroupedOp,
    GroupedProductOp,
)
from distir.errors import DistIRError
from distir.frontends.models.basic import build_moe
from distir.frontends.models.llama import build_llama
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import run_program
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.device_map import DeviceMap
from distir.interpreters.simulator.engine.transfers import transfers_of
from distir.passes.convert_floats import ConvertFloatsPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import argument_names, argument_roles, entry_function
from distir.sharding.mesh import meshes


def exchanged(module: ModuleOp, devices: int) -> int:
    """Bytes of tokens that a device sends in the all-to-alls of a program's functions."""
    return sum(
        4 * prod(shape_of(op.result)) // devices**2 * (devices - 1)
        for op in module.walk()
        if isinstance(op, AllToAllOp) and element_type(op.result) == f32
    )


def exchanges(module: ModuleOp) -> list[RaggedAllToAllOp]:
    """The all-to-alls of a program's functions that send no empty rows."""
    return [op for op in module.walk() if isinstance(op, RaggedAllToAllOp)]


def check_experts_stay(program: ModuleOp) -> None:
    """Checks that the matrices of experts are in parts, and that nothing gathers them."""
    function = entry_function(program)
    names, roles = argument_names(function), argument_roles(function)
    for name, role, argument in zip(names, roles, function.args, strict=True):
        if "experts" in name and role == "parameter":
            layout = layout_of(argument)
            assert layout is not None
            assert any(shard.axis == "e" for shard in layout.dim(0)), name
    for op in program.walk():
        if isinstance(op, AllGatherOp):
            # 4 experts, with matrices of 64 x 16 and 16 x 32
            assert shape_of(op.result) not in ((4, 64, 16), (4, 16, 32))


@pytest.mark.parametrize(
    ("name", "capacity", "options"),
    [
        # What four processes compute in launch/test_experts_run.py.
        pytest.param(
            *("mixtral", None, {"e": 2, "t": 2, "k": 2}), marks=pytest.mark.slow
        ),
        pytest.param(
            *("gpt_oss", None, {"d": 2, "e": 2, "zero": 3}), marks=pytest.mark.slow
        ),
        ("qwen3_moe", 1.25, {"e": 2, "p": 2, "k": 2}),
        (
            *("qwen3_moe", None),
            {"e": 2, "p": 2, "k": 2, "token_dispatch": "all-to-all"},
        ),
        pytest.param(
            *("mixtral", None, {"e": 4, "checkpoint": "full"}), marks=pytest.mark.slow
        ),
    ],
)
def test_training(name: str, capacity: float | None, options: dict[str, Any]) -> None:
    weights = imported_experts(name, capacity).weights
    step = experts_step(name, capacity)
    program = assert_same(step, 1e-4, weights, **options)
    if "p" not in options and "zero" not in options:
        check_experts_stay(program)


@pytest.mark.parametrize("e", [2, 4])
def test_equal_to_the_dense_computation(e: int) -> None:
    """
    Devices with one or two experts each, to which each sends its tokens, compute what PyTorch does
    with all four in one.
    """
    module, words = expert_model("mixtral")
    imported = imported_experts("mixtral")
    program = distributed(imported.module, e=e, token_dispatch="all-to-all")
    assert exchanges(program)
    given = {**imported.weights, "input_ids": words.numpy()}
    names = argument_names(entry_function(program))
    (found,) = run_program(program, [given[n] for n in names])
    expected = module(words).logits.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", sampled(["mixtral", "qwen3_moe"], 2))
def test_bytes_of_the_all_to_alls(name: str) -> None:
    """
    A device has N tokens, each with k choices of places, and sends (e-1)/e of them to the
    experts and back, in the forward and in the backward: 4 k N m (e-1)/e numbers.
    """
    e, choices, width = 4, 2, 16
    program = distributed(experts_step(name, 1.0), e=e)
    tokens = BATCH * LENGTH // e
    expected = 4 * 4 * choices * tokens * width * (e - 1) // e
    assert exchanged(program, e) == expected


@pytest.mark.parametrize(("name", "e"), [("mixtral", 4), ("qwen3_moe", 4)])
def test_bytes_without_a_capacity(name: str, e: int) -> None:
    """
    As with a capacity of 1, and tokens of two experts that are on the same device are sent to it
    twice: 4 k N m (e-1)/e numbers, twice in the forward and twice in the backward of each layer.
    """
    program = distributed(experts_step(name), e=e)
    cluster = next(op for op in program.walk() if isinstance(op, ClusterOp))
    device_map = DeviceMap(meshes(program), ["mesh"], Hardware.of(cluster))
    sent = 0.0
    for op in exchanges(program):
        found = transfers_of(op, device_map)
        assert found is not None
        sent += sum(transfer.sent[0, 0] for transfer in found)
    tokens, choices, width = BATCH * LENGTH // e, 2, 16
    assert sent == 4 * 4 * choices * tokens * width * (e - 1) / e


def test_tokens_go_the_shorter_way() -> None:
    """
    With two choices and two devices all tokens are gathered, as that sends as much; with four
    devices it would send twice as much.
    """
    step = imported_experts("mixtral").module
    assert not exchanges(distributed(step, e=2))
    assert exchanges(distributed(step, e=4))
    assert not exchanges(distributed(step, e=4, token_dispatch="gather"))


def in_16_bits(name: str) -> ModuleOp:
    """A training step of a model in bf16."""
    module, words = expert_model(name)
    step = import_torch(module, (words,)).module
    for each in (
        FoldShapesPass(),
        ConvertFloatsPass("bf16"),
        OutlineRepeatsPass(),
        DifferentiatePass(loss="cross_entropy", optimizer="sgd"),
    ):
        each.apply(Context(), step)
    return step


def test_rows_travel_in_16_bits() -> None:
    """Also where they are combined in 32 bits: they are cast where they arrive."""
    step = build_llama(1, 16, 4, 64, 4, 8, "bf16", experts=4)
    DifferentiatePass(loss="cross_entropy", optimizer="sgd").apply(Context(), step)
    program = distributed(step, e=4)
    assert {element_type(op.result) for op in exchanges(program)} == {bf16}
    combined = [op for op in program.walk() if isinstance(op, CombineOp)]
    assert {element_type(op.x) for op in combined} == {bf16, f32}


def test_biases_of_experts_are_multiplied_in_their_own_type() -> None:
    """By ones, which are booleans that PyTorch's exporter has cast to 32 bits."""
    products = [op for op in in_16_bits("gpt_oss").walk() if isinstance(op, GroupedOp)]
    ones = [op for op in products if shape_of(op.operands[0])[3] == 1]
    forward = [op for op in ones if isinstance(op, GroupedProductOp)]
    assert forward
    assert {element_type(op.result) for op in forward} == {bf16}


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_no_empty_rows_travel(name: str) -> None:
    """
    Where experts have biases neither, whose gradients come before those of the products. Each
    layer has two exchanges in its forward and two in its backward.
    """
    program = distributed(experts_step(name), e=4)
    found = [op for op in program.walk() if isinstance(op, AllToAllOp)]
    assert {element_type(op.result) for op in found} == {i64}  # the experts of rows
    moves = [op for op in program.walk() if isinstance(op, DispatchOp | CombineOp)]
    assert len(exchanges(program)) == len(moves) > 0


def test_ways_that_a_program_does_not_have() -> None:
    gshard = build_moe(2, 32, 4, 8, 64, 4, 16)
    with pytest.raises(
        DistIRError, match=r"all-to-all .* the program has none; leave it"
    ):
        distributed(gshard, e=2, token_dispatch="all-to-all")
    with pytest.raises(DistIRError, match=r"of other devices, but e is 1; choose a"):
        distributed(gshard, d=2, token_dispatch="gather")


@pytest.mark.parametrize(
    "options",
    [
        {"d": 2, "e": 2},
        # Every axis that there is, on 32 devices.
        {"d": 2, "c": 2, "t": 2, "e": 2, "p": 2, "k": 2},
        pytest.param(
            {"r": 2, "d": 2, "c": 2, "t": 2, "e": 2, "zero": 3}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_experts_of_gshard(options: dict[str, Any]) -> None:
    """Dense products that say with one-hot tensors which token goes where."""
    module = build_moe(2, 32, 4, 8, 64, 8, 16)
    DifferentiatePass().apply(Context(), module)
    program = assert_same(module, 1e-3, **options)
    assert any(isinstance(op, AllToAllOp) for op in program.walk())


def test_experts_that_cannot_be_dealt_out() -> None:
    module = build_moe(2, 32, 4, 6, 64, 4, 16)
    with pytest.raises(DistIRError, match=r"6 experts .* evenly .* -e that divides 6"):
        distributed(module, e=4)
    with pytest.raises(DistIRError, match=r"4 experts .* size 8; choose an -e that"):
        distributed(_of_eight(), e=8)


def _of_eight() -> ModuleOp:
    """A forward program of 8 sequences with 4 experts."""
    return build_moe(2, 32, 4, 4, 64, 8, 16)


def test_places_of_sequences_are_over_one_axis() -> None:
    """An expert counts the tokens of a whole sequence where it takes so many alone."""
    module = imported_experts("qwen3_moe", 1.25).module
    with pytest.raises(DistIRError, match=r"limits the tokens .*expert_axes=e"):
        distributed(module, e=2, t=2, expert_axes="et")
