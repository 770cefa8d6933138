"""Modules that compute in 16 bits, as PyTorch's autocast lets them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.programs import parse
from support.schedules import gpt, scheduled
from support.training_programs import distributed
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import BFloat16Type, ModuleOp, TensorType
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import argument_names, entry_function, walk_functions
from distir.scheduling import Schedule
from distir.transforms.precision.retyping import autocast


class Layer(nn.Module):
    """A layer with what autocast casts, what follows, and what stays."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q = h.unflatten(-1, (4, 4)).transpose(1, 2)
        h = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        h = x + self.down(F.gelu(self.up(h)))
        return F.softmax(self.head(h), -1)


def is_low(op: Operation) -> bool:
    """Whether an op computes in bf16."""
    types = [result.type for result in op.results]
    return any(
        isinstance(t, TensorType) and isinstance(t.element_type, BFloat16Type)
        for t in types
    )


def low(module: ModuleOp) -> set[str]:
    """The kinds of ops that compute in bf16."""
    ops = (op for _, op in walk_functions(module) if is_low(op))
    return {op.name.removeprefix("onnx.") for op in ops}


def test_what_computes_in_16_bits_is_what_autocast_chooses() -> None:
    torch.manual_seed(0)
    layer, x = Layer().eval(), torch.randn(4, 8, 16)
    imported = import_torch(layer, (x,))
    module = imported.module
    for transform in (FoldShapesPass(), RaisePatternsPass()):
        transform.apply(Context(), module)
    s = Schedule()
    s.cast("bf16")
    found = scheduled(module, s)
    assert {"MatMul", "Attention", "Gelu", "Transpose"} <= low(found)
    assert not low(found) & {"LayerNormalization", "Softmax"}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = layer(x).float().numpy()
    exact = layer(x).detach().numpy()
    given = {**imported.weights, "x": x.numpy()}
    arguments = [given[name] for name in argument_names(entry_function(found))]
    (result,) = run_program(found, arguments)
    rounding = np.abs(wanted - exact).max()
    assert rounding > 1e-4
    # Not the same roundings, as PyTorch adds biases inside of products, but as large.
    assert rounding / 3 < np.abs(result - exact).max() < 3 * rounding
    assert np.abs(result - wanted).max() < 3 * rounding


def test_layers_that_are_cast_train_in_f32() -> None:
    module = gpt(layers=2)
    s = Schedule()
    s["transformer.h.1"].cast("bf16")
    found = scheduled(module, s)
    assert len({f for f, op in walk_functions(found) if is_low(op)}) == 1
    steps = [each.clone() for each in (module, found)]
    for step in steps:
        DifferentiatePass(optimizer="sgd", learning_rate=0.1).apply(Context(), step)
        step.verify()
    types = [entry_function(step).function_type for step in steps]
    assert types[0] == types[1]  # parameters and their updates are in f32
    arguments = random_arguments(steps[0], 0)
    plain, cast = (run_program(step, arguments) for step in steps)
    for a, b in zip(plain, cast, strict=True):
        np.testing.assert_allclose(
            b, a, rtol=2e-2, atol=2e-2 * max(1e-3, np.abs(a).max())
        )
    for options in ({"d": 2, "t": 2}, {"p": 2, "k": 2}):
        results = run_program(distributed(steps[1], **options), arguments)
        for a, b in zip(cast, results, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-2, atol=2e-2 * np.abs(a).max())


def test_modules_without_products_cannot_be_cast() -> None:
    s = Schedule()
    s["transformer.ln_f"].cast("bf16")
    with pytest.raises(DistIRError, match=r"line \d+: transformer.ln_f has no product"):
        scheduled(gpt(layers=1), s)


def test_operators_are_those_of_autocast_in_programs() -> None:
    """One list for both: sums of products and PReLU too compute in 16 bits."""
    module = parse(
        """
        func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
                        %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
                        %a: tensor<8xf32> {dist.role = "parameter", dist.name = "a"})
                          -> tensor<4x8xf32> {
          %p = onnx.Einsum(%x, %w) {equation = "ij,jk->ik"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
          %y = onnx.PRelu(%p, %a) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
          func.return %y : tensor<4x8xf32>
        }
        """
    )
    cast = module.clone()
    autocast(module, BFloat16Type())
    s = Schedule()
    s.cast("bf16")
    assert low(scheduled(cast, s)) == low(module) == {"Einsum", "PRelu", "Cast"}
