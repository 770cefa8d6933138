"""
Checks a gradient rule: against central differences and against torch.autograd, in f64.

```python
from gradients.harness import GradientCase, check, normal

CASES = [
    GradientCase("Mul", [normal(2, 3), normal(3)], torch=torch.mul),
    GradientCase("Softmax", [normal(2, 3)], {"axis": 0}, torch=lambda x: x.softmax(0)),
]

@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case):
    check(case)
```

Every test module of this folder with rules of its own has such a list `CASES`:
test_every_rule.py asserts that no registered rule is without a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from support.sharding_harness import Array, Case, build, evaluate, typed
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from distir.gradients.rule import (
    is_differentiable,
    take_training_forms,
)
from distir.interpreters.reference import run_program
from distir.testing.derivatives import as_program, backward_of, central_differences

Make = Callable[[Sequence[SSAValue]], Operation]


@dataclass(frozen=True)
class GradientCase(Case):
    """
    `name` is that of an ONNX operator, or of any op that `make` builds from the operands
    (its results typed). `torch` computes the same from tensors, by schema position (None
    for omitted inputs), and gives a tensor or a sequence with one per result, equal to
    `tolerance`. `smooth` is false at a point where differences do not approximate the
    gradient (a tie).
    """

    torch: Callable[..., Any] | None = None
    make: Make | None = None
    smooth: bool = True
    tolerance: float = 1e-9

    __str__ = Case.__str__

    @property
    def op_name(self) -> str:
        return f"onnx.{self.name}" if self.make is None else self.name


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in f64."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def uniform(*shape: int, low: float = 0.5, high: float = 2.0, seed: int = 0) -> Array:
    """Evenly distributed numbers in f64; positive unless told otherwise."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def integers(*values: Any) -> Array:
    """Indices, shapes, axes: 64-bit integers."""
    return np.array(values[0] if len(values) == 1 else values, dtype=np.int64)


def operands_of(case: GradientCase) -> list[Array]:
    """The inputs that are function arguments."""
    return [
        a
        for i, a in enumerate(case.inputs)
        if a is not None and i not in case.constants
    ]


def build_op(case: GradientCase) -> tuple[Operation, Block]:
    """The op of a case, in a block whose arguments are its operands."""
    if case.make is not None:
        block = Block(arg_types=[typed(a) for a in operands_of(case)])
        op = case.make(block.args)
        block.add_op(op)
        return op, block
    op, _ = build(case)
    results = evaluate(op, [a for a in case.inputs if a is not None])
    return build(case, None, [typed(r) for r in results])


def training_op(
    case: GradientCase, used: frozenset[int] = frozenset([0])
) -> tuple[Operation, Block]:
    """
    The op whose gradient rule a case is of, in a block as `build_op` gives it. A training
    form stands for an op of which the first result alone is used.
    """
    op, block = build_op(case)
    if used <= {0}:
        take_training_forms(
            block, {r: None for r in op.results if is_differentiable(r)}
        )
    assert block.last_op is not None
    return block.last_op, block


def forward_program(case: GradientCase) -> ModuleOp:
    """`@main(operands) -> results`."""
    op, block = build_op(case)
    return as_program(block, op.results)


def backward_program(
    case: GradientCase, used: frozenset[int]
) -> tuple[ModuleOp, list[int]]:
    """
    `@main(operands, gradients of the used results) -> gradients of operands`, and the
    arguments that these gradients belong to: the others have none.
    """
    return backward_of(*training_op(case, used), used)


def check(case: GradientCase) -> None:
    """
    Compares the gradients of every operand, for all results and for each one alone, and
    builds the rule for 16 and 32-bit floats, where types must fit as well.
    """
    op, _ = build_op(case)
    kinds = [is_differentiable(r) for r in op.results]
    floats = frozenset(i for i, yes in enumerate(kinds) if yes)
    choices = {floats, *(frozenset([i]) for i in floats)}
    for used in sorted(choices, key=sorted):
        compare(case, used)
        if case.make is None:
            for dtype in (np.float16, np.float32):
                narrow = [
                    a.astype(dtype) if a is not None and a.dtype == np.float64 else a
                    for a in case.inputs
                ]
                backward_program(replace(case, inputs=narrow), used)


def compare(case: GradientCase, used: frozenset[int]) -> None:
    """Compares the gradients for these results with differences and with torch."""
    operands = operands_of(case)
    forward = forward_program(case)
    results = run_program(forward, operands)
    rng = np.random.default_rng(1)
    weights = {i: rng.standard_normal(results[i].shape) for i in sorted(used)}
    backward, positions = backward_program(case, used)
    found = run_program(backward, [*operands, *weights.values()])
    given = dict(zip(positions, found, strict=True))

    def value(arguments: Sequence[Array]) -> float:
        outputs = run_program(forward, arguments)
        return float(sum(np.sum(outputs[i] * w) for i, w in weights.items()))

    got = {
        i: given.get(i, np.zeros_like(a))
        for i, a in enumerate(operands)
        if a.dtype == np.float64
    }
    if case.smooth:
        for i, gradient in got.items():
            expected = central_differences(value, operands, i)
            np.testing.assert_allclose(
                gradient, expected, rtol=1e-5, atol=1e-7, err_msg=f"operand {i}"
            )
    if case.torch is not None:
        compare_with_torch(case, results, weights, got)


def compare_with_torch(
    case: GradientCase,
    results: Sequence[Array],
    weights: dict[int, Array],
    got: dict[int, Array],
) -> None:
    """Compares results and gradients with torch's."""
    assert case.torch is not None
    close = partial(
        np.testing.assert_allclose, rtol=case.tolerance, atol=case.tolerance
    )
    tensors = [None if a is None else torch.tensor(a) for a in case.inputs]
    arguments = [
        t for i, t in enumerate(tensors) if t is not None and i not in case.constants
    ]
    wanted = [arguments[i].requires_grad_() for i in got]
    outputs = case.torch(*tensors)
    if isinstance(outputs, torch.Tensor):
        outputs = [outputs]
    for ours, theirs in zip(results, outputs, strict=True):
        close(ours, theirs.detach().numpy())
    used = [i for i in weights if outputs[i].requires_grad]
    if not used or not wanted:
        assert not any(np.any(g) for g in got.values())
        return
    expected = torch.autograd.grad(
        [outputs[i] for i in used],
        wanted,
        [torch.tensor(weights[i]) for i in used],
        allow_unused=True,
    )
    for (i, gradient), theirs in zip(got.items(), expected, strict=True):
        theirs = np.zeros_like(gradient) if theirs is None else theirs.numpy()
        close(gradient, theirs, err_msg=f"operand {i} (torch)")
