"""Distributed programs compute what the sequential ones do."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_programs import arguments_of, assert_same_results, programs
from support.thoroughness import tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.collective_ops.base import CollectiveOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.distribute import DistributePass
from distir.planning.annotations import read_notes
from distir.program import argument_names, argument_roles, entry_function


def distributed(module: ModuleOp, **options: object) -> ModuleOp:
    clone = module.clone()
    DistributePass(**options).apply(Context(), clone)  # type: ignore[arg-type]
    return clone


def assert_same(module: ModuleOp, other: ModuleOp, seed: int = 0) -> None:
    arguments = random_arguments(module, seed, None)
    expected = run_program(module, arguments)
    actual = run_program(other, arguments)
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@settings(
    max_examples=tries(120), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.sampled_from([(2, 1), (1, 2), (2, 2), (1, 4), (4, 2), (1, 3)]))
def test_random_programs(module: ModuleOp, degrees: tuple[int, int]) -> None:
    d, t = degrees
    assert_same_results(module, distributed(module, d=d, t=t), arguments_of(module))


@settings(
    max_examples=tries(120), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(programs(max_ops=6), st.data())
def test_random_programs_with_random_requests(
    module: ModuleOp, data: st.DataObject
) -> None:
    """Any split of any arguments that its sizes allow can be asked for."""
    function = entry_function(module)
    names = argument_names(function)
    requests: list[str] = []
    for i, arg in enumerate(function.body.block.args):
        assert isinstance(arg.type, TensorType)
        choices = [
            f"{names[i]}:{dim}={axis}{run}"
            for dim, size in enumerate(arg.type.get_shape())
            for axis in ("d", "t")
            for run in ("", *([":1"] if size % 2 == 0 and size > 2 else []))
            if size % 2 == 0
        ]
        if argument_roles(function)[i] == "input":
            # data-parallel has its own say over axis d of the batch.
            choices = [c for c in choices if "=t" in c and ":0=" not in c]
        if choices and data.draw(st.booleans()):
            requests.append(data.draw(st.sampled_from(choices)))
    result = distributed(module, d=2, t=2, shard=tuple(requests))
    assert_same_results(module, result, arguments_of(module))


@pytest.mark.parametrize("degrees", [(2, 1), (1, 2), (2, 2), (1, 4), (2, 4)])
def test_gpt(degrees: tuple[int, int]) -> None:
    module = build_gpt(layers=2, d_model=32, heads=4, vocab=64, batch=4, seq=8)
    assert_same(module, distributed(module, d=degrees[0], t=degrees[1]))


def collectives(module: ModuleOp, function: str) -> list[str]:
    from distir.program import functions

    return [
        op.name
        for op in functions(module)[function].body.block.ops
        if isinstance(op, CollectiveOp)
    ]


def test_a_gpt_layer_costs_two_all_reduces() -> None:
    """Closed form V1: two all-reduces of b*s*h elements per layer in the forward pass."""
    module = build_gpt(layers=3, d_model=64, heads=8, vocab=128, batch=4, seq=16)
    result = distributed(module, t=4)
    assert collectives(result, "layer") == ["collective.all_reduce"] * 2
    reduces = [
        op
        for op in result.walk()
        if op.name == "collective.all_reduce"
        and op.parent_op().sym_name.data == "layer"  # type: ignore[union-attr]
    ]
    for op in reduces:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        assert np.prod(type_.get_shape()) == 4 * 16 * 64


def test_heads_that_cannot_be_split_stay_whole() -> None:
    """12 heads over 8 devices, vocabulary 51 over 8: whole, noted, and right."""
    module = build_gpt(layers=1, d_model=48, heads=12, vocab=51, batch=2, seq=8)
    result = distributed(module, t=8)
    notes = " ".join(read_notes(result))
    assert "12" in notes and "51" in notes and "cannot be split evenly by 8" in notes
    assert_same(module, result)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            "transformer.h.0.mlp.c_fc.weight:0=t",
            "dimension 0 of size 15 cannot be split evenly",
        ),
        ("transformer.wte.weight:2=t", "has no dimension 2"),
        ("transformer.wte.weight:0", "cannot read the split"),
        ("nobody:0=t", "no argument is called 'nobody'"),
        ("transformer.wte.weight:1=q", "no axis 'q'"),
    ],
)
def test_requests_that_cannot_be_met(request_: str, words: str) -> None:
    module = build_gpt(layers=1, d_model=15, heads=3, vocab=51, batch=2, seq=4)
    with pytest.raises(DistIRError, match=words):
        distributed(module, t=2, shard=(request_,))


def test_fused_qkv_weights_are_slices_by_heads() -> None:
    """Each device's columns are those of its own heads, bit for bit."""
    from distir.dialects.dist import layout_of
    from distir.sharding.layout import take_shard
    from distir.sharding.mesh import meshes

    module = build_gpt(layers=1, d_model=32, heads=4, vocab=64, batch=2, seq=4)
    result = distributed(module, t=2)
    function = entry_function(result)
    index = argument_names(function).index("transformer.h.0.attn.c_attn.weight")
    layout = layout_of(function.body.block.args[index])
    assert layout is not None
    (mesh,) = meshes(result).values()
    weight = np.random.default_rng(0).normal(size=(32, 96)).astype(np.float32)
    for coordinates in mesh.coordinates:
        shard = take_shard(weight, layout, mesh, coordinates)
        half = slice(16 * coordinates["t"], 16 * coordinates["t"] + 16)
        parts: Sequence[np.ndarray] = [
            weight[:, 32 * i : 32 * i + 32] for i in range(3)
        ]
        expected = np.concatenate([part[:, half] for part in parts], axis=1)
        np.testing.assert_array_equal(shard, expected)
