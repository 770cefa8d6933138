"""Dropout draws the same numbers everywhere: bit by bit, in NumPy and in torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from support.lowering_cases import run_here
from support.programs import parse
from support.sharding_harness import Array, Case, sequential
from support.thoroughness import each_once, sampled
from support.training_programs import distributed, training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, i1

from distir.dialects.train_ops.dropout import DropoutOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.train.dropout import threefry
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.program import argument_names, entry_function, functions, result_names
from distir.runtime import random_numbers
from distir.testing import runs
from distir.testing.runs import run_split
from distir.testing.splits import assignments, mesh
from distir.transforms.slicing import evaluation_program

PROGRAM = """
func.func @main(
    %x: tensor<8x12x6xf32> {{dist.role = "input", dist.name = "x"}},
    %step: tensor<i64> {{dist.role = "state", dist.name = "optimizer.step", dist.counter}}
) -> tensor<8x12x6xf32> {{
  %y = train.dropout %x, %step {{ratio = {ratio} : f64, seed = {seed} : i64, stream = {stream} : i64}} : (tensor<8x12x6xf32>, tensor<i64>) -> tensor<8x12x6xf32>
  func.return %y : tensor<8x12x6xf32>
}}
"""


def program(ratio: float = 0.5, seed: int = 0, stream: int = 0) -> ModuleOp:
    return parse(PROGRAM.format(ratio=ratio, seed=seed, stream=stream))


def mask(module: ModuleOp, step: int = 0) -> Array:
    """The result for ones."""
    ones = np.ones((8, 12, 6), np.float32)
    return run_program(module, [ones, np.array(step, np.int64)])[0]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_threefry_gives_its_known_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
):
    assert tuple(int(x[0]) for x in threefry(key, *counter)) == expected


def test_both_threefrys_are_one():
    first, second = np.random.default_rng(0).integers(0, 2**32, (2, 1000))
    ours = threefry((5, 2**32 - 3), first, second)
    theirs = random_numbers.threefry(
        (5, 2**32 - 3), torch.tensor(first), torch.tensor(second)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize(
    ("mask_type", "dtype"),
    each_once(
        [None, TensorType(i1, [6, 12])],
        [np.float16, ml_dtypes.bfloat16, np.float32, np.float64],
    ),
    ids=str,
)
def test_every_split_gives_the_same_bits(
    dtype: Any, mask_type: Any, monkeypatch: pytest.MonkeyPatch
):
    """One and two axes, of one or two dimensions, with every run length."""
    x = np.random.default_rng(0).standard_normal((6, 12)).astype(dtype)
    options = {"ratio": 0.3, "seed": 1, "stream": 2, "mask": mask_type}
    plain = sequential(
        Case(
            "train.dropout",
            (x, np.array(2**35 + 3, np.int64)),
            make=lambda operands: DropoutOp(*operands, **options),
        )
    )
    monkeypatch.setattr(
        runs, "compare", lambda got, expected, _: assert_array_equal(got, expected)
    )
    count = 0
    for on in (mesh(a=2, b=3), mesh(a=2, b=2)):
        for assignment in assignments(plain.rule, on):
            run_split(plain, on, assignment)
            count += 1
    assert count > 60


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
)
def test_torch_gives_the_same_bits(dtype: Any):
    text = str(program(ratio=0.1, seed=2**32 - 1, stream=9))
    name = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
    module = parse(text.replace("xf32", f"x{name[np.dtype(dtype).name]}"))
    x = np.random.default_rng(1).standard_normal((8, 12, 6)).astype(dtype)
    arguments = [x, np.array(2**33 + 1, np.int64)]
    (expected,) = run_program(module, arguments)
    (found,) = run_here(module, arguments)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize(
    "shard",
    [(), ("x:0=t",), ("x:1=t",), ("x:1=t:2",), ("x:2=t",), ("x:0=t:1",)],
)
def test_distributed_programs_give_the_same_bits(shard: tuple[str, ...]):
    module = program()
    for d in (1, 2):
        other = distributed(module, d=d, t=2, shard=shard)
        np.testing.assert_array_equal(mask(other, 4), mask(module, 4))


def test_numbers_differ():
    """Each step, seed and stream has numbers of its own, in the right proportion."""
    found = [
        mask(program()),
        mask(program(), 1),
        mask(program(), 2**32),
        mask(program(seed=1)),
        mask(program(stream=1)),
    ]
    for i, one in enumerate(found):
        assert set(np.unique(one)) == {0, 2}
        assert 0.4 < (one > 0).mean() < 0.6
        for other in found[:i]:
            assert 0.4 < (one == other).mean() < 0.6
    np.testing.assert_array_equal(mask(program(0.0)), 1)
    assert 0.85 < (mask(program(0.1)) > 0).mean() < 0.95


def arguments_of(module: ModuleOp) -> list[Array]:
    """Random arguments, of the fourth step."""
    names = argument_names(entry_function(module))
    return [
        np.array(3, np.int64) if name == "optimizer.step" else value
        for name, value in zip(names, random_arguments(module, 7), strict=True)
    ]


def run_step(**options: Any) -> tuple[ModuleOp, list[Array], list[Array]]:
    """A step of a GPT with dropout, its arguments and results."""
    module = training_gpt(dropout=0.25, optimizer="sgd", learning_rate=1.0, **options)
    arguments = arguments_of(module)
    return module, arguments, run_program(module, arguments)


@pytest.fixture(scope="module")
def step() -> tuple[ModuleOp, list[Array], list[Array]]:
    """With attention as one op."""
    return run_step()


@pytest.fixture(scope="module")
def written_out() -> tuple[ModuleOp, list[Array], list[Array]]:
    """With attention in products, a softmax and a dropout."""
    return run_step(fused_attention=False)


def test_fused_attention_drops_the_same_elements(step: Any, written_out: Any):
    """One op instead of three, which keeps neither probabilities nor masks."""
    module, arguments, results = step
    other, _, expected = written_out
    text, plain = str(module), str(other)
    assert "train.dropped_attention_grad" in text and "onnx.Softmax(" not in text
    assert "onnx.Softmax(" in plain and "train.dropped_attention" not in plain
    for found in (results, run_here(module, arguments)):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    # In the function of a layer nothing has a size for each query and key but the mask.
    (forward,) = [f for n, f in functions(module).items() if n.endswith("_forward")]
    scores = [t for t in forward.function_type.outputs if "8x8x" in str(t)]
    assert not scores


def test_attention_is_evaluated_without_dropout(step: Any):
    module, arguments, _ = step
    plain = training_gpt(optimizer="sgd", learning_rate=1.0)
    evaluation = evaluation_program(module)
    (found,), (expected, *_) = (
        run_program(evaluation, arguments),
        run_program(plain, arguments[:-1]),
    )
    assert "dropped" not in str(evaluation)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"t": 4, "sequence_parallel": True},
            {"d": 2},
            {"d": 2, "t": 2, "zero": 3, "checkpoint": "full"},
            {"t": 2},
            {"c": 2, "d": 2},
            {"d": 2, "t": 2},
            {"p": 2, "k": 2},
        ],
        2,
    ),
)
def test_distributions_train_alike(step: Any, options: dict[str, Any]):
    module, arguments, expected = step
    found = run_program(distributed(module, **options), arguments)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "program"), [("full", "step"), ("selective", "written_out")]
)
def test_recomputation_draws_again(
    policy: str, program: str, request: pytest.FixtureRequest
):
    module, arguments, expected = request.getfixturevalue(program)
    other = module.clone()
    ActivationCheckpointPass(policy=policy).apply(Context(), other)
    assert str(other) != str(module)
    for a, b in zip(run_program(other, arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def stored() -> ModuleOp:
    """The step with masks that the forward stores."""
    options = {"optimizer": "sgd", "learning_rate": 1.0, "dropout_masks": "stored"}
    module = training_gpt(dropout=0.25, **options)
    text = str(module)
    # Of the embeddings, and three of the layer; none is drawn by the backward.
    assert text.count("train.dropout ") == text.count("train.dropout_grad ") == 4
    return module


def test_stored_masks_are_those_drawn_again(written_out: Any):
    module, arguments, expected = written_out
    other = stored()
    for a, b in zip(run_program(other, arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    found, drawn = run_here(other, arguments), run_here(module, arguments)
    for a, b in zip(found, drawn, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"d": 2, "t": 2, "zero": 3, "checkpoint": "full"},
            {"d": 2},
            {"d": 2, "t": 2},
            {"t": 4, "sequence_parallel": True},
            {"t": 2, "checkpoint": "selective"},
        ],
        5,
    ),
)
def test_stored_masks_of_distributions(written_out: Any, options: dict[str, Any]):
    """Bit by bit where the rest of the program is the same, as without sequences split."""
    module, arguments, expected = written_out
    found = run_program(distributed(stored(), **options), arguments)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    if "sequence_parallel" not in options:
        drawn = run_program(distributed(module, **options), arguments)
        for a, b in zip(found, drawn, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_counted(optimizer: str):
    module = training_gpt(dropout=0.25, optimizer=optimizer)
    names = argument_names(entry_function(module))
    assert names.count("optimizer.step") == 1
    results = dict(
        zip(
            result_names(entry_function(module)),
            run_program(module, arguments_of(module)),
            strict=True,
        )
    )
    assert results["optimizer.step"] == 4


def test_a_ratio_that_is_none():
    with pytest.raises(DistIRError, match="less than 1"):
        build_gpt(1, 8, 2, 8, 1, 4, dropout=1.0)
