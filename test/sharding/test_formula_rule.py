"""
Ops that are formulas against what was written by hand for them before: the sharding rule, as
text, the reference, bit by bit, and the types of results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ml_dtypes import bfloat16
from support.cases import named
from support.sharding_harness import Case, build, of_each_op
from support.train_cases import CASES
from support.written_by_hand import BY_HAND
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import FormulaError
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train import Train
from distir.dialects.train_ops.base import FormulaOp
from distir.dialects.train_ops.checks import accumulation_type
from distir.interpreters.train.formulas import evaluated
from distir.sharding.factor_text import rule_from
from distir.sharding.rule import rule_for

_ACTIVATION = "[*d], [*d] -> [*d] linear 0"
_SOFTMAX = "[*a@axis, k, *b], [*a, k, *b] -> [*a, k, *b] keep k linear 0"
_ADAM = "[*d], [*d], [*d], [*d], [], [] -> [*d], [*d], [*d]"

RULES = {
    "gelu_grad": _ACTIVATION,
    "relu_grad": _ACTIVATION,
    "swish_grad": _ACTIVATION,
    "shrink_grad": _ACTIVATION,
    "dropout_grad": "[*d], [*d] -> [*d]",
    "softmax_grad": _SOFTMAX,
    "log_softmax_grad": _SOFTMAX,
    "layer_norm": "[*r@axis, *c], [*c], [*c] -> [*r, *c], [*r, *?], [*r, *?] keep c",
    "rms_norm": "[*r@axis, *c], [*c] -> [*r, *c], [*r, *?] keep c",
    "layer_norm_grad": "[*r@axis, *c], [*r, *c], [*c], [*r, *?], [*r, *?] "
    "-> [*r, *c], [*c], [*c] keep c linear 0",
    "rms_norm_grad": "[*r@axis, *c], [*r, *c], [*c], [*r, *?] "
    "-> [*r, *c], [*c] keep c linear 0",
    "batch_norm_variance": "[n, c, *s], [c] -> [c]",
    "batch_norm_sums": "[n, c, *s], [n, c, *s], [c], [c] -> [c], [c] linear 0",
    "batch_norm_grad": "[n, c, *s], [n, c, *s], [c], [c], [c] "
    "-> [n, c, *s], [c], [c] linear 0",
    "batch_norm_input_grad": "[n, c, *s], [n, c, *s], [c], [c], [c], [c], [c] "
    "-> [n, c, *s] linear 0+5+6",
    "ghost_batch_norm": "[g@groups m, c, *s], [c], [c] "
    "-> [g m, c, *s], [g, c], [g, c] keep m s",
    "ghost_batch_norm_grad": "[g@groups m, c, *s], [g m, c, *s], [c], [g, c], [g, c] "
    "-> [g m, c, *s], [c], [c] keep m s linear 0",
    "cross_entropy": "[*p, v], [*p] -> [] decompose v",
    "cross_entropy_grad": "[], [*p, v], [*p] -> [*p, v] decompose v linear 0",
    "logit_maximum": "[*p, v] -> [*p] max v",
    "exponential_sum": "[*p, v], [*p] -> [*p]",
    "label_logit": "[*p, v], [*p] -> [*p] linear 0",
    "cross_entropy_sum": "[*p], [*p], [*p], [*p] -> []",
    "cross_entropy_part_grad": "[], [*p, v], [*p], [*p], [*p] -> [*p, v] linear 0",
    "sgd": "[*d], [*d], [*d], [] -> [*d], [*d]",
    "adam": _ADAM,
    "adamw": _ADAM,
    "square_sum": "[*d] -> []",
}
"""The rules of ops of `train`, in the notation of `factor_text`."""

ELEMENTS = {
    "layer_norm": "1 w0 w0",
    "rms_norm": "1 w0",
    "layer_norm_grad": "1 2 2",
    "rms_norm_grad": "1 2",
    "batch_norm_variance": "1",
    "batch_norm_sums": "2 2",
    "batch_norm_grad": "1 3 3",
    "batch_norm_input_grad": "1",
    "ghost_batch_norm": "0 1 1",
    "ghost_batch_norm_grad": "1 2 2",
    "cross_entropy": "w0",
    "cross_entropy_grad": "1",
    "logit_maximum": "w0",
    "exponential_sum": "w0",
    "label_logit": "w0",
    "cross_entropy_sum": "w0",
    "cross_entropy_part_grad": "1",
    "square_sum": "w0",
}
"""
The operand whose element type each result has, with `w` that in which its sums are kept; by
default the first.
"""

OPS = {
    name.removeprefix("train."): cases
    for name, cases in of_each_op(CASES).items()
    if name.removeprefix("train.") in RULES
}

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, 1e-30)


def resized(cases: list[Case]) -> Iterator[Case]:
    """Yields cases with other sizes: one of them 1 or twice as large."""
    for case in cases:
        yield case
        sizes = {n for a in case.inputs if a is not None for n in a.shape}
        for old in sizes:
            for new in {1, 2 * old}:
                inputs = [
                    a if a is None else np.zeros([new if n == old else n for n in a.shape], a.dtype)
                    for a in case.inputs
                ]  # fmt: skip
                yield replace(case, inputs=inputs)


def verified(case: Case) -> FormulaOp | None:
    """Returns the op of a case; None if its types do not fit."""
    try:
        op, _ = build(case)
        op.verify()
    except (VerifyException, FormulaError):
        return None
    assert isinstance(op, FormulaOp)
    return op


def typed(cases: list[Case]) -> Iterator[Case]:
    """Yields cases in all types of floats that fit."""
    for case in cases:
        for old, new in (("f4", "f4"), ("f4", "f8"), ("f4", "f2"), ("f2", bfloat16)):
            inputs = [
                a.astype(new) if a is not None and a.dtype == old else a
                for a in case.inputs
            ]
            yield replace(case, inputs=inputs)


def with_special(case: Case) -> Case:
    """Returns a case with NaN, infinities and zeros among its numbers."""
    rng = np.random.default_rng(3)
    inputs: list[npt.NDArray[Any] | None] = []
    for array in case.inputs:
        if array is not None and array.dtype.kind in "fV":
            chosen = rng.random(array.shape) < 0.2
            with np.errstate(over="ignore"):
                values = rng.choice(SPECIAL, array.shape).astype(array.dtype)
            array = np.where(chosen, values, array)
        inputs.append(array)
    return replace(case, inputs=inputs)


def narrowed(op: Operation, found: Any) -> list[npt.NDArray[Any]]:
    """Returns results in their types, each NaN the same one."""
    arrays = found if isinstance(found, tuple) else (found,)
    types = [numpy_dtype(element_type(value)) for value in op.results]
    given = [np.asarray(a).astype(t) for a, t in zip(arrays, types, strict=True)]
    return [np.where(np.isnan(a), np.array(np.nan, a.dtype), a) for a in given]


FORMULAS = {op.name: op for op in Train.operations if issubclass(op, FormulaOp)}


def test_each_is_compared():
    assert {f"train.{name}" for name in RULES} == BY_HAND.keys() <= FORMULAS.keys()


def test_elementwise_ops_have_formulas_of_elements():
    """What is elementwise by its class has one factor for each dimension, which all share."""
    for case in CASES:
        op = verified(case) if case.name in FORMULAS else None
        if op is not None and op.IS_ELEMENTWISE:
            rule = rule_for(op)
            assert {*rule.operands, *rule.results} == {rule.results[0]}
            assert all(factor.kind == "parallel" for factor in rule.factors)


@pytest.mark.parametrize("name", RULES)
def test_the_rule_is_that_by_hand(name: str):
    compared = 0
    for case in resized(OPS[name]):
        op = verified(case)
        if op is not None:
            compared += 1
            with named(case):
                assert rule_for(op) == rule_from(RULES[name])(op)
    assert compared > 1


@pytest.mark.parametrize("name", RULES)
def test_element_types_are_those_by_hand(name: str):
    for case in typed(OPS[name]):
        op = verified(case)
        for value, word in zip(
            () if op is None else op.results, cycle(ELEMENTS.get(name, "0").split())
        ):
            assert op is not None
            source = op.operands[int(word.removeprefix("w"))]
            expected = (
                accumulation_type(source) if "w" in word else element_type(source)
            )
            assert element_type(value) == expected


@pytest.mark.parametrize("name", RULES)
def test_values_are_those_by_hand(name: str):
    compared: set[Any] = set()
    for plain in typed(OPS[name]):
        for case in (plain, with_special(plain)):
            op = verified(case)
            if op is None:
                continue
            given = [a for a in case.inputs if a is not None]
            wide = [a.astype("f4") if a.dtype.itemsize == 2 else a for a in given]
            compared.add(given[-1].dtype)
            with named(case), np.errstate(all="ignore"):
                found = narrowed(op, evaluated(op, *wide))
                expected = narrowed(op, BY_HAND[op.name](op, *wide))
                for one, other in zip(found, expected, strict=True):
                    assert one.tobytes() == other.tobytes()
                    assert one.shape == other.shape
