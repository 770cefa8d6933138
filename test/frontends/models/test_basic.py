"""Built programs: names, repetition, dtypes, and that they compute what they should."""

import numpy as np
import pytest
import torch
from support.models import model
from support.programs import inferred_types, names_by_role, ops_of, round_trip
from xdsl.dialects.func import CallOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function, functions, scope_of


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("tied", [True, False])
def test_gpt_is_valid(dtype: str, tied: bool):
    module = build_gpt(2, 64, 4, 128, 2, 8, dtype, tied=tied)
    round_trip(module)
    for op in ops_of(module):
        assert inferred_types(op) == [r.type for r in op.results], str(op)
    assert ("lm_head.weight" in names_by_role(module)["parameter"]) is not tied


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_mlp_is_valid(dtype: str):
    module = build_mlp(3, 8, 4, dtype)
    round_trip(module)
    for op in ops_of(module):
        assert inferred_types(op) == [r.type for r in op.results], str(op)
    assert names_by_role(module) == {
        "input": ["input"],
        "parameter": [f"layers.{i}.{n}" for i in range(3) for n in ("weight", "bias")],
    }


def test_a_layer_is_built_once():
    module = build_gpt(96, 12288, 96, 50257, 1, 2048, "f16")
    assert list(functions(module)) == ["main", "layer"]
    main = entry_function(module)
    calls = [op for op in main.body.block.ops if isinstance(op, CallOp)]
    assert [scope_of(c) for c in calls] == [f"transformer.h.{i}" for i in range(96)]
    assert len(list(module.walk())) < 200


def test_parameter_count_of_gpt3():
    """DistIR's GPT-2 175B: 12 L d^2 weights of the layers and the embeddings."""
    module = build_gpt(96, 12288, 96, 50257, 1, 2048, "f16")
    main = entry_function(module)
    names = argument_names(main)
    count = sum(
        int(np.prod(arg.type.get_shape()))
        for name, arg in zip(names, main.body.block.args, strict=True)
        if name != "input_ids"
    )
    layers = 96 * (12 * 12288**2 + 13 * 12288)
    assert count == layers + (50257 + 2048) * 12288 + 2 * 12288


def test_gpt_is_hugging_faces():
    """Same names, same function: the state dict of the original gives its logits."""
    case = model("gpt2")
    config = case.module.config
    weights = case.module.state_dict()
    batch, seq = case.inputs["input_ids"].shape
    module = build_gpt(
        config.n_layer, config.n_embd, config.n_head, config.vocab_size, batch, seq
    )
    arguments = [
        case.numpy_inputs[name] if name in case.inputs else weights[name].numpy()
        for name in argument_names(entry_function(module))
    ]
    position = argument_names(entry_function(module)).index("transformer.wpe.weight")
    arguments[position] = arguments[position][:seq]
    [logits] = run_program(module, arguments)
    np.testing.assert_allclose(logits, case.numpy_outputs["logits"], atol=1e-5)


def test_mlp_computes_linear_and_relu():
    module = build_mlp(3, 8, 4)
    generator = np.random.default_rng(0)
    arguments = [
        generator.standard_normal(arg.type.get_shape(), np.float32)
        for arg in entry_function(module).body.block.args
    ]
    expected = torch.tensor(arguments[0])
    for weight, bias in zip(arguments[1::2], arguments[2::2], strict=True):
        expected = torch.relu(expected @ torch.tensor(weight) + torch.tensor(bias))
    [output] = run_program(module, arguments)
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-5)


GPT = dict(layers=2, d_model=64, heads=4, vocab=128, batch=2, seq=8)


@pytest.mark.parametrize("name", GPT)
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_of_gpt(name: str, size: int):
    with pytest.raises(DistIRError, match=f"{name} is {size}; a model needs"):
        build_gpt(**(GPT | {name: size}))


@pytest.mark.parametrize("name", ["layers", "d_model", "batch"])
def test_sizes_of_mlp(name: str):
    with pytest.raises(DistIRError, match=f"{name} is 0; a model needs"):
        build_mlp(**(dict(layers=2, d_model=8, batch=2) | {name: 0}))


def test_heads_must_divide_the_width():
    with pytest.raises(DistIRError, match="5 heads do not divide the model width 64"):
        build_gpt(**(GPT | {"heads": 5}))


def test_unknown_dtype():
    with pytest.raises(DistIRError, match="no dtype 'f8'; choose one of bf16, f16"):
        build_gpt(**GPT, dtype="f8")
    with pytest.raises(DistIRError, match="no dtype"):
        build_mlp(2, 8, 2, "float32")
