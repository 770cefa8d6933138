"""Runs of `activation-checkpoint` one after another: residuals are followed exactly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp

from distir.dialects.dist import RECOMPUTE, RECOMPUTE_BY
from distir.errors import DistIRError
from distir.gradients.call_pairs import FORWARD, saved_values
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.distribute import DistributePass
from distir.program import entry_function, functions

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def step() -> tuple[ModuleOp, list[Array], list[Array]]:
    """A step of a GPT with dropout, its arguments and results."""
    module = training_gpt(dropout=0.25, optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    return module, arguments, run_program(module, arguments)


def after(module: ModuleOp, *runs: dict[str, Any]) -> ModuleOp:
    """The program after these runs of the pass."""
    module = module.clone()
    for options in runs:
        ActivationCheckpointPass(**options).apply(Context(), module)
        module.verify()
    return module


def backward_ops(module: ModuleOp) -> list[Counter[str]]:
    """How many ops of each kind each backward function has."""
    return [
        Counter(op.name for op in function.body.block.ops)
        for function in functions(module).values()
        if FORWARD in function.attributes
    ]


def kept(module: ModuleOp) -> int:
    """Results of forwards that calls of backwards take."""
    known = functions(module)
    return sum(
        kind == "result"
        for op in entry_function(module).body.block.ops
        if isinstance(op, CallOp)
        for kind, _ in saved_values(known[op.callee.string_value()])
    )


FULL = {"policy": "full"}
SELECTIVE = {"policy": "selective"}


@pytest.mark.parametrize(
    "runs",
    [
        (SELECTIVE, FULL),
        (FULL, SELECTIVE),
        (FULL, FULL),
        (SELECTIVE, SELECTIVE, FULL),
        ({"policy": "full", "layers": (0,)}, {"policy": "full", "layers": (1,)}),
    ],
    ids=str,
)
def test_what_recomputes_everything_in_the_end_is_full(step: Any, runs: Any):
    module, arguments, expected = step
    found = after(module, *runs)
    alone = after(module, FULL)
    assert kept(found) == kept(alone) == 0 < kept(after(module, SELECTIVE))
    assert all(ops in backward_ops(alone) for ops in backward_ops(found))
    for a, b in zip(run_program(found, arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "distribution",
    [
        {"d": 2, "t": 2},
        pytest.param({"p": 2, "k": 2}, marks=pytest.mark.slow),
        {"p": 2, "k": 2, "schedule": "zb-h1"},
    ],
    ids=str,
)
def test_whole_layers_run_again(distribution: dict[str, Any]):
    """
    `whole` computes what no gradient needs too, the MLP's last product, and keeps it in
    distributed programs; the results are the same.
    """
    module = training_gpt(optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    expected = run_program(module, arguments)
    full, whole = after(module, FULL), after(module, {"policy": "whole"})
    for fewer, more in zip(backward_ops(full), backward_ops(whole), strict=True):
        assert more - fewer == Counter({"onnx.MatMul": 1, "onnx.Add": 2})
    flops = []
    for policy in ("full", "whole"):
        found = module.clone()
        DistributePass(checkpoint=policy, **distribution).apply(Context(), found)
        flops.append(simulate(found, load_cluster("cpu", 4)).flops)
        for a, b in zip(run_program(found, arguments), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert flops[1] > flops[0]


def test_layers_are_counted_alike_in_every_run(step: Any):
    """Layer 1 keeps its number when layer 0 keeps nothing any more."""
    module, arguments, expected = step
    mixed = after(
        module,
        {"policy": "full", "layers": (0,)},
        {"policy": "selective", "layers": (1,)},
    )
    assert 2 * kept(mixed) == kept(after(module, SELECTIVE)) > 0
    for a, b in zip(run_program(mixed, arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def requested(module: ModuleOp, policies: dict[int, str]) -> ModuleOp:
    """The program with policies asked for by its forward calls, by index."""
    module = module.clone()
    known = functions(module)
    calls = [
        op
        for op in entry_function(module).body.block.ops
        if isinstance(op, CallOp)
        and FORWARD not in known[op.callee.string_value()].attributes
    ]
    for index, policy in policies.items():
        calls[index].attributes[RECOMPUTE] = StringAttr(policy)
    return module


def test_what_a_call_asks_for_goes_before_the_policy_of_all(step: Any):
    module, arguments, expected = step
    asked = requested(module, {0: "full"})
    found = after(asked, {"policy": "none"})
    assert str(found) == str(after(module, {"policy": "full", "layers": (0,)}))
    assert RECOMPUTE not in str(found)
    kept_one = after(requested(module, {1: "none"}), FULL)
    assert str(kept_one) == str(found)
    for got, wanted in zip(run_program(found, arguments), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        DistIRError, match=r"func.call.* there is no dist.recompute 'most'"
    ):
        after(requested(module, {0: "most"}), FULL)
    asked = requested(module, {0: "selective"})
    forward = next(
        op for op in entry_function(asked).walk() if RECOMPUTE in op.attributes
    )
    forward.attributes[RECOMPUTE_BY] = StringAttr("script.py, line 3")
    with pytest.raises(
        DistIRError,
        match=r"layers=0 asks for policy 'full' of func.call.*, but script.py, line 3 asks "
        r"for 'selective'; ask for one of these",
    ):
        after(asked, {"policy": "full", "layers": (0,)})
    assert RECOMPUTE_BY not in str(after(asked, FULL))


def test_what_a_call_asks_for_holds_when_distributed(step: Any):
    module, arguments, expected = step
    asked = requested(module, {0: "full"})
    DistributePass(d=2).apply(Context(), asked)
    names = [name for name in functions(asked) if name.endswith("_recompute")]
    assert len(names) == 1
    for got, wanted in zip(run_program(asked, arguments), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "forwards"), [("none", 0), ("selective", 0), ("full", 1)]
)
def test_attention_runs_again_only_if_its_layer_does(
    policy: str, forwards: int
) -> None:
    """Its backward starts from what it keeps; there are no scores to drop."""
    module = after(training_gpt(), {"policy": policy})
    for backward in backward_ops(module):
        assert backward["train.attention_grad"] == 1
        assert backward["train.attention"] == forwards
        assert backward["train.layer_norm"] == 2 * forwards
