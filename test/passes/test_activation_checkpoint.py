"""Runs of `activation-checkpoint` one after another: residuals are followed exactly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.cost_programs import cluster
from support.programs import parse
from support.thoroughness import each_once, sampled
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation

from distir.dialects.device import ClusterOp
from distir.dialects.dist_attributes import RECOMPUTE, RECOMPUTE_BY
from distir.errors import DistIRError
from distir.gradients.call_pairs import FORWARD, saved_values
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.auto.auto import auto_search
from distir.planning.grid import GridPlan, Programs, Simulated, ranked, run
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.result import simulated
from distir.program import entry_function, functions, return_op
from distir.transforms.memory.checkpoint_policies import LayerPolicies

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
    assert f"{RECOMPUTE} =" not in str(found)
    kept_one = after(requested(module, {1: "none"}), FULL)
    assert str(kept_one) == str(found)
    for got, wanted in zip(run_program(found, arguments), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        DistIRError, match=r"func.call.* there is no checkpoint policy 'most'"
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


PRODUCTS = {"onnx.MatMul", "onnx.Gemm", "train.attention", "train.dropped_attention"}


def products(module: ModuleOp) -> list[int]:
    """How many products each backward function computes."""
    return [sum(ops[name] for name in PRODUCTS) for ops in backward_ops(module)]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_results_of_products_are_kept(dropout: float):
    """
    The policy `products` computes norms, GELU and dropout again, but no product: fewer
    results are kept, and all numbers stay.
    """
    module = training_gpt(dropout=dropout, optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    found = after(module, {"policy": "products"})
    assert 0 < kept(found) < kept(module)
    assert set(products(found)) == set(products(module))
    full = after(module, FULL)
    assert max(products(full)) > max(products(found))
    sizes = [
        max(simulate(each, load_cluster("cpu", 1)).peak_memory_bytes)
        for each in (full, found, module)
    ]
    assert sizes[0] < sizes[1] < sizes[2]
    for a, b in zip(
        run_program(found, arguments), run_program(module, arguments), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_products_under_tensor_parallelism():
    """What all-reduces bring is kept: as many collectives as without recomputation."""
    module = training_gpt(optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    expected = run_program(module, arguments)
    counts: dict[str, int] = {}
    for policy in ("none", "products", "full"):
        found = module.clone()
        DistributePass(t=2, checkpoint=policy, buckets=False).apply(Context(), found)
        known = functions(found)
        counts[policy] = sum(
            inner.name == "collective.all_reduce"
            for op in entry_function(found).body.block.ops
            if isinstance(op, CallOp)
            for inner in known[op.callee.string_value()].body.block.ops
        )
        for a, b in zip(run_program(found, arguments), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert counts["products"] == counts["none"] < counts["full"]


@pytest.mark.parametrize(
    ("policy", "layers"),
    [
        ("full:0.5", [0, 2, 4]),
        ("full:1/3", [0, 3]),
        ("selective:0.5", []),
        ("full:1", [0, 1, 2, 3, 4, 5]),
        ("full:0.1", []),
        ("full:1/3+3/3", [0, 3, 4, 5]),
        ("full:2/2+2/3+0/1", [0, 1, 2, 3]),
    ],
)
def test_a_part_of_the_layers_recomputes(policy: str, layers: list[int]):
    """They are spread evenly, over all layers or over each run of them."""
    module = training_gpt(layers=6, optimizer="sgd", learning_rate=1.0)
    found = after(module, {"policy": policy})
    expected = after(module, {"layers": tuple(layers)}) if layers else module
    assert str(found) == str(expected)


def test_the_last_layer_is_the_last_to_recompute():
    """
    Its backward comes first, when all other layers still keep their values: to compute it
    again there takes more memory than to compute another one again.
    """
    module = training_gpt(layers=4, optimizer="sgd", learning_rate=1.0)
    programs = [
        after(module, options)
        for options in ({"policy": "full:0.5"}, {"layers": (1, 3)})
    ]
    for program in programs:
        block = program.body.block
        block.insert_op_before(small_machine(1, 10**10), block.ops.first)  # type: ignore[arg-type]
    first, last = (simulate(program).peak_memory_bytes for program in programs)
    assert first < last


@pytest.mark.parametrize(
    ("policy", "policies"),
    [
        ("full:1/2:products", ["full", "products"] * 2),
        ("full:1/1+0/3:products", ["full", *["products"] * 3]),
        (
            "full:1/2+0/2:save:onnx.MatMul+train.attention",
            ["full", *["save:onnx.MatMul+train.attention"] * 3],
        ),
    ],
)
def test_the_other_layers_have_a_policy_of_their_own(policy: str, policies: list[str]):
    module = training_gpt(layers=4, optimizer="sgd", learning_rate=1.0)
    found = after(module, {"policy": policy})
    expected = after(requested(module, dict(enumerate(policies))), {"policy": "none"})
    assert str(found) == str(expected)
    assert str(LayerPolicies.of(policy, "test")) == policy
    arguments = random_arguments(module, 3)
    pairs = zip(
        run_program(module, arguments), run_program(found, arguments), strict=True
    )
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "policy",
    [
        *("full:", "full:0", "full:1.5", "full:half", "full:0/2+0/2", "full:3/2+0/2"),
        *("full:0.5+0.5", "full:1/2+", "full:-1/2+1/2"),
    ],
)
def test_parts_that_are_none(policy: str):
    module = training_gpt()
    with pytest.raises(DistIRError, match=r"for which part of the layers .* full:0\.5"):
        after(module, {"policy": policy})


def test_runs_of_another_number_of_layers():
    module = training_gpt(layers=4)
    with pytest.raises(DistIRError, match=r"is for 3 layers, but the program has 4"):
        after(module, {"policy": "full:1/1+0/2"})
    with pytest.raises(DistIRError, match="is for a part of several layers"):
        after(module, {"policy": "full:1/2:full:1/2"})


@pytest.mark.parametrize("p", sampled([1, 2], 2))
def test_half_of_the_layers_beats_all_and_none(p: int):
    """
    Where nothing recomputed does not fit, half of the layers are faster than all; the search
    finds that.
    """
    module = training_gpt(layers=4, optimizer="sgd", learning_rate=1.0)
    plans = [
        GridPlan(4, d=1, t=1, p=p, k=2 if p > 1 else 1, checkpoint=policy)
        for policy in ("none", "full:0.5", "full")
    ]
    sizes: dict[str, Simulated] = {}

    def tried(memory: int) -> list[Simulated]:
        on = small_machine(p, memory)
        programs = Programs.of([module], on)
        return simulated([r for some in run(programs, plans, jobs=1) for r in some])

    for result in tried(10**10):
        sizes[result.plan.checkpoint] = result
    none, half, full = (sizes[plan.checkpoint] for plan in plans)
    assert full.peak_memory_bytes < half.peak_memory_bytes < none.peak_memory_bytes
    assert none.step_time_s < half.step_time_s < full.step_time_s
    limit = (half.peak_memory_bytes + none.peak_memory_bytes) // 2
    best = ranked(tried(limit))[0]
    assert best.plan.checkpoint == "full:0.5"
    if p > 1:
        return
    for policies, chosen in (
        (("none", "full"), "full:1/4"),
        ((), "products"),
    ):
        options = SearchOptions(jobs=1, micro_batches=(1,), checkpoint=policies)
        found = auto_search([module], small_machine(1, limit), options)
        found.run()
        assert found.best is not None and found.best.plan.checkpoint == chosen
        assert none.step_time_s < found.best.step_time_s <= half.step_time_s


def small_machine(devices: int, memory: int) -> ClusterOp:
    """Devices whose products take longer than anything else."""
    return cluster(
        devices,
        levels=((devices, 1e10, 1e-6),) if devices > 1 else (),
        peak=1e9,
        bandwidth=1e11,
        launch=0.0,
        memory=memory,
    )


SAVED_PRODUCTS = "save:onnx.MatMul+train.attention"


@pytest.mark.parametrize(
    ("policy", "distribution"),
    each_once(
        [
            "recompute:onnx.Gelu+train.layer_norm+onnx.Split",
            "save:onnx.Gelu",
            SAVED_PRODUCTS,
        ],
        [{}, {"d": 2, "t": 2}, {"p": 2, "k": 2}],
    ),
)
def test_lists_of_ops_compute_the_same(policy: str, distribution: dict[str, Any]):
    module = training_gpt(optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    expected = run_program(module, arguments)
    if distribution:
        found = module.clone()
        DistributePass(checkpoint=policy, **distribution).apply(Context(), found)
    else:
        found = after(module, {"policy": policy})
    assert any("_saving" in name for name in functions(found))
    for a, b in zip(run_program(found, arguments), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_list_keeps_the_results_of_its_ops():
    """Only these, as far as a gradient or what is computed again needs them."""
    module = training_gpt()
    found = after(module, {"policy": SAVED_PRODUCTS})
    made = {
        value.owner.name
        for name, function in functions(found).items()
        if name.endswith("_saving")
        for value in return_op(function).operands[1:]
        if isinstance(value.owner, Operation)
    }
    assert made == {"onnx.MatMul", "train.attention"}
    full = after(module, FULL)
    for few, many in zip(backward_ops(found), backward_ops(full), strict=True):
        assert many["onnx.MatMul"] > few["onnx.MatMul"] == 0
        assert few["onnx.Gelu"] == many["onnx.Gelu"] == 1
    every = {
        op.name
        for function in functions(module).values()
        if FORWARD not in function.attributes
        for op in function.body.block.ops
        if function is not entry_function(module) and op.operands
    } - {"func.return"}
    alone = after(module, {"policy": "recompute:" + "+".join(sorted(every))})
    assert backward_ops(alone) == backward_ops(full) and kept(alone) == kept(full)


def test_lists_say_the_same_as_other_policies():
    """Where products are residuals themselves, to save them is the policy `products`."""
    x, w = "tensor<8x16xf32>", "tensor<16x16xf32>"
    role = 'dist.role = "parameter", dist.name ='
    module = parse(f"""
        func.func @main(%x: {x} {{dist.role = "input", dist.name = "x"}},
                        %v: {w} {{{role} "v"}}, %w: {w} {{{role} "w"}}) -> {x} {{
          %0 = func.call @layer(%x, %v) : ({x}, {w}) -> {x}
          %1 = func.call @layer(%0, %w) : ({x}, {w}) -> {x}
          func.return %1 : {x}
        }}
        func.func private @layer(%x: {x} {{dist.role = "input"}},
                                 %w: {w} {{dist.role = "parameter"}}) -> {x} {{
          %h = onnx.MatMul(%x, %w) : ({x}, {w}) -> {x}
          %g = onnx.Gelu(%h) : ({x}) -> {x}
          %y = onnx.MatMul(%g, %w) : ({x}, {w}) -> {x}
          func.return %y : {x}
        }}""")
    DifferentiatePass(loss="mse").apply(Context(), module)
    products = after(module, {"policy": "products"})
    for policy in ("save:onnx.MatMul", "recompute:onnx.Gelu"):
        found = after(module, {"policy": policy})
        assert backward_ops(found) == backward_ops(products) != backward_ops(module)
        assert kept(found) == kept(products) < kept(module)
        one, other = (simulate(m, load_cluster("cpu", 1)) for m in (found, products))
        assert one.step_time_s == other.step_time_s
        assert one.peak_memory_bytes == other.peak_memory_bytes


def test_some_layers_have_a_list():
    module = training_gpt(layers=3, optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 3)
    runs = (
        {"policy": SAVED_PRODUCTS, "layers": (1,)},
        {"policy": "full", "layers": (0,)},
    )
    found = after(module, *runs)
    assert 0 < kept(found) < kept(module)
    for a, b in zip(
        run_program(found, arguments), run_program(module, arguments), strict=True
    ):
        np.testing.assert_array_equal(a, b)
