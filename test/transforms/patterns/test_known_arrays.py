"""Arrays that follow from constants alone are stored without their repetitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.parallel_scripts import tiny_llama
from support.programs import parse

from distir.dialects.onnx_ops.op import OnnxOp
from distir.frontends.torch.importer import import_torch
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import entry_function
from distir.tools.files import apply_passes, named_pass
from distir.transforms.patterns import known_arrays
from distir.transforms.patterns.known_arrays import KnownArrays, once


def test_what_is_repeated_is_stored_once() -> None:
    module = parse("""
        func.func @main() -> tensor<500x3xi64> {
          %row = onnx.Constant() {value = dense<[[1, 2, 3]]> : tensor<1x3xi64>} : () -> tensor<1x3xi64>
          %shape = onnx.Constant() {value = dense<[500, 3]> : tensor<2xi64>} : () -> tensor<2xi64>
          %axis = onnx.Constant() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
          %rows = onnx.Expand(%row, %shape) : (tensor<1x3xi64>, tensor<2xi64>) -> tensor<500x3xi64>
          %sums = onnx.CumSum(%rows, %axis) : (tensor<500x3xi64>, tensor<i64>) -> tensor<500x3xi64>
          func.return %sums : tensor<500x3xi64>
        }""")
    (sums,) = (
        op.results[0]
        for op in entry_function(module).body.block.ops
        if op.name == "onnx.CumSum"
    )
    found = KnownArrays().of(sums)
    assert found is not None
    np.testing.assert_array_equal(found, np.tile([1, 3, 6], (500, 1)))
    assert once(found).shape == (1, 3)


def test_an_omitted_operand_stays_omitted() -> None:
    module = parse("""
        func.func @main() -> tensor<500x3xi64> {
          %row = onnx.Constant() {value = dense<[[1, 2, 3]]> : tensor<1x3xi64>} : () -> tensor<1x3xi64>
          %shape = onnx.Constant() {value = dense<[500, 3]> : tensor<2xi64>} : () -> tensor<2xi64>
          %rows = onnx.Expand(%row, %shape) : (tensor<1x3xi64>, tensor<2xi64>) -> tensor<500x3xi64>
          %most = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64>
          %y = onnx.Clip(%rows, none, %most) : (tensor<500x3xi64>, tensor<i64>) -> tensor<500x3xi64>
          func.return %y : tensor<500x3xi64>
        }""")
    (y,) = (op.results[0] for op in module.walk() if op.name == "onnx.Clip")
    found = KnownArrays().of(y)
    assert found is not None
    np.testing.assert_array_equal(found, np.tile([1, 2, 2], (500, 1)))
    assert once(found).shape == (1, 3)


def test_a_mask_for_a_large_batch_is_as_causal_as_one_for_a_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of LLaMA looks positions up for each sample, in case they are packed sequences."""
    batch, length = 64, 64
    words = torch.zeros(batch, length, dtype=torch.int64)
    module = import_torch(tiny_llama(layers=1), (words,)).module
    # As many as the positions or a square have, but not as the squares of a batch.
    most = 2 * batch * length
    monkeypatch.setattr(known_arrays, "_MOST_ELEMENTS", most)
    apply_passes(module, named_pass("fold-shapes"), RaisePatternsPass())
    (attention,) = (
        op
        for op in module.walk()
        if isinstance(op, OnnxOp) and op.name == "onnx.Attention"
    )
    assert attention.attribute("is_causal") == 1
    assert len(attention.operands) == 3
