"""Gradients in f32 of parameters in 16 bits: every term is cast before it is added."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.lowering_cases import run_here
from support.programs import parse
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType

from distir.dialects.collective_ops.base import CollectiveOp
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function, result_names

Array = np.ndarray[Any, Any]


def two_layers(batch: int) -> ModuleOp:
    """`relu(x w) w v + b` in bf16: w is used twice, b by each sample."""
    return parse(f"""
      func.func @main(
          %x: tensor<{batch}x8xbf16> {{dist.role = "input", dist.name = "x"}},
          %w: tensor<8x8xbf16> {{dist.role = "parameter", dist.name = "w"}},
          %v: tensor<8x4xbf16> {{dist.role = "parameter", dist.name = "v"}},
          %b: tensor<4xbf16> {{dist.role = "parameter", dist.name = "b"}}
      ) -> tensor<{batch}x4xbf16> {{
        %0 = func.call @dense(%x, %w) : (tensor<{batch}x8xbf16>, tensor<8x8xbf16>) -> tensor<{batch}x8xbf16>
        %1 = func.call @dense(%0, %w) : (tensor<{batch}x8xbf16>, tensor<8x8xbf16>) -> tensor<{batch}x8xbf16>
        %2 = onnx.MatMul(%1, %v) : (tensor<{batch}x8xbf16>, tensor<8x4xbf16>) -> tensor<{batch}x4xbf16>
        %3 = onnx.Add(%2, %b) : (tensor<{batch}x4xbf16>, tensor<4xbf16>) -> tensor<{batch}x4xbf16>
        func.return %3 : tensor<{batch}x4xbf16>
      }}
      func.func private @dense(
          %x: tensor<{batch}x8xbf16>,
          %w: tensor<8x8xbf16> {{dist.role = "parameter"}}
      ) -> tensor<{batch}x8xbf16> {{
        %h = onnx.MatMul(%x, %w) : (tensor<{batch}x8xbf16>, tensor<8x8xbf16>) -> tensor<{batch}x8xbf16>
        %y = onnx.Relu(%h) : (tensor<{batch}x8xbf16>) -> tensor<{batch}x8xbf16>
        func.return %y : tensor<{batch}x8xbf16>
      }}""")


def gradients(module: ModuleOp, **options: object) -> ModuleOp:
    """The program that gives loss and gradients."""
    options = {"loss": "mse", "optimizer": "none"} | options
    DifferentiatePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    module.verify()
    return module


def results(module: ModuleOp, arguments: list[Array]) -> dict[str, Array]:
    names = result_names(entry_function(module))
    return dict(zip(names, run_program(module, arguments), strict=True))


def reduced_types(module: ModuleOp) -> Counter[str]:
    """The element types of what is reduced, without the loss."""
    return Counter(
        str(type_.element_type)
        for op in module.walk()
        if isinstance(op, CollectiveOp)
        and op.name in ("collective.all_reduce", "collective.reduce_scatter")
        and isinstance(type_ := op.operands[0].type, TensorType)
        and type_.get_num_dims()
    )


def test_terms_of_data_parallelism_are_added_in_f32():
    """
    Each of two devices has the gradient of its half of the batch, of which the loss is a
    half of the mean: with bf16 in the parameters, those halves are exact.
    """
    module = gradients(two_layers(8), gradient_dtype="f32")
    arguments = random_arguments(module, 0)
    found = results(distributed(module, d=2), arguments)
    half = gradients(two_layers(4), gradient_dtype="f32")
    x, labels, *rest = arguments
    parts = [
        results(half, [x[part], labels[part], *rest])
        for part in (slice(0, 4), slice(4, 8))
    ]
    for name in ("w", "v", "b"):
        name = f"{name}.gradient"
        assert found[name].dtype == np.float32
        expected = np.float32(0.5) * parts[0][name] + np.float32(0.5) * parts[1][name]
        np.testing.assert_array_equal(found[name], expected)
        # That is more than 16 bits hold.
        assert (expected.astype(ml_dtypes.bfloat16) != expected).any()


def test_uses_of_a_parameter_are_added_in_f32():
    module = two_layers(8)
    arguments = random_arguments(gradients(module.clone()), 0)
    narrow = results(gradients(module.clone()), arguments)
    wide = results(gradients(module.clone(), gradient_dtype="f32"), arguments)
    # v and b have one use each, whose gradient is computed in bf16 either way.
    for name in ("v.gradient", "b.gradient"):
        np.testing.assert_array_equal(wide[name], narrow[name].astype(np.float32))
    assert (wide["w.gradient"] != narrow["w.gradient"].astype(np.float32)).any()
    np.testing.assert_array_equal(
        wide["w.gradient"].astype(ml_dtypes.bfloat16), narrow["w.gradient"]
    )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_is_reduced_is_f32(zero: int):
    """
    Also through the transposition of GPT's tied embedding, and under ZeRO. With this many
    tokens it costs less to bring parameters together than activations, so that all that is
    reduced are gradients.
    """
    for dtype in ("parameter", "f32"):
        module = build_gpt(1, 16, 4, 32, 64, 8, "bf16")
        DifferentiatePass(gradient_dtype=dtype).apply(Context(), module)
        found = reduced_types(distributed(module, d=2, zero=zero))
        assert set(found) == {"f32" if dtype == "f32" else "bf16"}


@pytest.mark.parametrize(
    "options",
    [
        {"d": 4},
        {"d": 2, "t": 2, "zero": 3, "checkpoint": "full", "sequence_parallel": True},
    ],
)
def test_distributions_train_alike(options: dict[str, Any]):
    module = build_gpt(2, 16, 4, 32, 4, 8, "bf16")
    DifferentiatePass(gradient_dtype="f32", clip=1.0).apply(Context(), module)
    arguments = random_arguments(module, 1)
    expected = run_program(module, arguments)
    for other in (
        run_program(distributed(module, **options), arguments),
        run_here(module, arguments),
    ):
        for a, b in zip(other, expected, strict=True):
            wide = [v.astype(np.float64) for v in (a, b)]
            np.testing.assert_allclose(*wide, rtol=2e-2, atol=2e-3)


def test_wide_parameters_keep_their_type():
    """f32 is no change for f32, and f64 is not narrowed."""
    for element in ("f32", "f64"):
        text = str(two_layers(4)).replace("bf16", element)
        same = gradients(parse(text), gradient_dtype="f32")
        assert str(same) == str(gradients(parse(text)))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_without_master_weights(optimizer: str):
    """The optimizer updates bf16 parameters themselves, and its states are bf16 too."""
    found: dict[bool, dict[str, Array]] = {}
    for master in (True, False):
        module = two_layers(4)
        DifferentiatePass(
            loss="mse", optimizer=optimizer, learning_rate=0.5, master_weights=master
        ).apply(Context(), module)
        arguments = random_arguments(module, 1)
        names = argument_names(entry_function(module))
        weights = dict(zip(names, arguments, strict=True))
        for name, argument in weights.items():
            if name.endswith(".master"):
                argument[...] = weights[name.removesuffix(".master")]
            elif name.endswith((".exp_avg", ".exp_avg_sq")):
                argument[...] = 0
        found[master] = results(module, arguments)
        for a, b in zip(
            run_here(module, arguments), run_program(module, arguments), strict=True
        ):
            wide = [v.astype(np.float64) for v in (a, b)]
            np.testing.assert_allclose(*wide, rtol=2e-2, atol=2e-3)
    assert not any(name.endswith(".master") for name in found[False])
    for name, value in found[False].items():
        if name != "loss" and value.ndim:
            assert value.dtype == ml_dtypes.bfloat16
    for name in ("w", "v", "b"):
        # One step from the same weights: equal but for the rounding of the states.
        both = [found[m][name].astype(np.float64) for m in (True, False)]
        np.testing.assert_allclose(*both, rtol=1e-2, atol=1e-2)
