"""Loss scaling keeps gradients in f16 finite and from vanishing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.programs import parse
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.loss_scaling import EXPONENT, FIRST, INTERVAL, LAST, STEPS
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function, result_names

Array = np.ndarray[Any, Any]


def step(optimizer: str = "adamw", **options: Any) -> ModuleOp:
    """A training step of `relu(x v) w` in f16, with scaling of the loss."""
    module = parse("""
      func.func @main(
          %x: tensor<8x4xf16> {dist.role = "input", dist.name = "x"},
          %v: tensor<4x4xf16> {dist.role = "parameter", dist.name = "v"},
          %w: tensor<4x2xf16> {dist.role = "parameter", dist.name = "w"}
      ) -> tensor<8x2xf16> {
        %h = onnx.MatMul(%x, %v) : (tensor<8x4xf16>, tensor<4x4xf16>) -> tensor<8x4xf16>
        %r = onnx.Relu(%h) : (tensor<8x4xf16>) -> tensor<8x4xf16>
        %y = onnx.MatMul(%r, %w) : (tensor<8x4xf16>, tensor<4x2xf16>) -> tensor<8x2xf16>
        func.return %y : tensor<8x2xf16>
      }""")
    options = {"loss": "mse", "loss_scaling": "dynamic"} | options
    DifferentiatePass(optimizer=optimizer, **options).apply(Context(), module)
    module.verify()
    return module


def first_arguments(module: ModuleOp, size: float = 1.0) -> dict[str, Array]:
    """Inputs of that size, parameters and states before the first step."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {
        "x": (size * random.normal(size=(8, 4))).astype(np.float16),
        "labels": random.normal(size=(8, 2)).astype(np.float32),
        "v": random.normal(size=(4, 4)).astype(np.float16),
        "w": random.normal(size=(4, 2)).astype(np.float16),
    }
    for name in argument_names(entry_function(module)):
        owner, _, kind = name.rpartition(".")
        if name in (EXPONENT, STEPS, "optimizer.step"):
            found[name] = np.int64(0)  # type: ignore[assignment]
        elif kind == "master":
            found[name] = found[owner].astype(np.float32)
        elif owner in found and kind != "":
            found[name] = np.zeros_like(found[owner], np.float32)
    return found


def results(module: ModuleOp, arguments: Mapping[str, Any]) -> dict[str, Array]:
    function = entry_function(module)
    values = [arguments[name] for name in argument_names(function)]
    with np.errstate(over="ignore", invalid="ignore"):
        found = run_program(module, values)
    return dict(zip(result_names(function), found, strict=True))


def test_small_gradients_do_not_vanish() -> None:
    """Inputs of 1e-5 make gradients that f16 has few bits of, or none."""
    scaled, plain = step("none"), step("none", loss_scaling="none")
    arguments = first_arguments(scaled, 1e-5)
    exact = first_arguments(scaled, 1e-5)
    x, v, w, y = (exact[n].astype(np.float64) for n in ("x", "v", "w", "labels"))
    hidden = x @ v
    error = 2 * (np.maximum(hidden, 0) @ w - y) / y.size
    wanted = x.T @ ((error @ w.T) * (hidden > 0))
    with_scale, without = (
        np.abs(results(p, arguments)["v.gradient"] - wanted).max()
        / np.abs(wanted).max()
        for p in (scaled, plain)
    )
    assert with_scale < 2e-3
    assert without > 5 * with_scale


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_that_overflows_changes_the_scale_alone(optimizer: str) -> None:
    module = step(optimizer, momentum=0.5, clip=1.0)
    arguments = first_arguments(module, 30.0)
    found = results(module, arguments)
    replaced = {name: value for name, value in found.items() if name in arguments}
    assert replaced[EXPONENT] == -1 and replaced[STEPS] == 0
    for name, value in replaced.items():
        if name not in (EXPONENT, STEPS):
            np.testing.assert_array_equal(value, arguments[name], name)
    for _ in range(FIRST):
        arguments |= {n: v for n, v in found.items() if n in arguments}
        found = results(module, arguments)
        if found[EXPONENT] == arguments[EXPONENT]:
            break
    assert found[STEPS] == 1
    assert not np.array_equal(found["w.master"], arguments["w.master"])
    assert all(np.isfinite(value).all() for value in found.values())


@pytest.mark.parametrize(
    ("exponent", "steps", "then"),
    [
        (0, INTERVAL - 2, (0, INTERVAL - 1)),
        (0, INTERVAL - 1, (1, 0)),
        (LAST - FIRST, INTERVAL - 1, (LAST - FIRST, 0)),
    ],
)
def test_the_scale_doubles_after_many_steps(
    exponent: int, steps: int, then: tuple[int, int]
) -> None:
    module = step("sgd")
    arguments = first_arguments(module, 1e-3)
    arguments["labels"] *= 1e-3
    states = {EXPONENT: np.int64(exponent), STEPS: np.int64(steps)}
    found = results(module, {**arguments, **states})
    assert (int(found[EXPONENT]), int(found[STEPS])) == then


@pytest.mark.parametrize(
    "options", [dict(d=2, t=2), dict(d=2, zero=1), dict(p=2, k=2)], ids=str
)
@pytest.mark.parametrize("size", [0.1, 30.0])
def test_distributed_steps_agree_on_it(options: dict[str, Any], size: float) -> None:
    module = step()
    arguments = first_arguments(module, size)
    arguments["labels"] *= min(size, 1.0)
    wanted = results(module, arguments)
    found = results(distributed(step(), **options), arguments)
    assert found[EXPONENT] == wanted[EXPONENT] == (0 if size < 1 else -1)
    for name, value in wanted.items():
        np.testing.assert_allclose(
            np.asarray(found[name], np.float32),
            np.asarray(value, np.float32),
            2e-2,
            1e-3,
        )
