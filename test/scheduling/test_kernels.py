"""Users' kernels in programs: their rules, meaning, gradients and costs."""

from __future__ import annotations

import pytest
from support.elementwise import elementwise
from support.schedules import assert_same_results, gpt, scheduled
from support.thoroughness import each_once, sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.utils.exceptions import VerifyException

from distir.dialects.kernel import KernelCallOp, kernels
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.planning.distribution.distribute import distribute
from distir.planning.grid import Evaluator
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import replace_cluster
from distir.planning.plans.result import Simulated
from distir.program import walk_functions
from distir.scheduling import Columns, Kernel, Rows, Schedule, patterns
from distir.sharding.verification import verify_distribution

RULE = "[b, q, h 4], [b, k, h 4], [b, k, h 4] -> [b, q, h 4]"


def with_kernel(kernel: Kernel, module: ModuleOp | None = None) -> ModuleOp:
    """A GPT with a kernel in the attention of layer 2."""
    s = Schedule()
    s["transformer.h.2.attn"].find(patterns.causal_attention).replace(kernel)
    return scheduled(gpt() if module is None else module, s)


def attention(**options: str) -> Kernel:
    return Kernel("mine", "mine:attention", **options)


@pytest.mark.parametrize("rule", [RULE, ""])
def test_a_kernel_is_its_reference_however_it_is_split(rule: str) -> None:
    module = gpt()
    keep = "q k" if rule else ""
    found = with_kernel(attention(rule=rule, keep=keep), module)
    assert sum(isinstance(op, KernelCallOp) for _, op in walk_functions(found)) == 1
    assert_same_results(module, found)
    for options in ({"d": 2, "t": 2}, {"t": 4}, {"p": 2, "k": 2}):
        assert_same_results(module, distributed(found, **options))


@pytest.mark.parametrize(
    ("gradient", "options"),
    each_once(
        ["autograd", "mine:backward", "reference"],
        [{"p": 2, "k": 2}, {"d": 2, "t": 2}, {"d": 2, "zero": 3}],
    ),
)
def test_gradients_of_kernels(gradient: str, options: dict[str, int]) -> None:
    module = gpt()
    found = with_kernel(attention(rule=RULE, keep="q k", gradient=gradient), module)
    for each in (module, found):
        DifferentiatePass(optimizer="sgd", learning_rate=0.1).apply(Context(), each)
        each.verify()
    assert list(kernels(found)) == ["mine"] + ["mine_grad"] * (gradient != "reference")
    assert_same_results(module, found)
    assert_same_results(module, distributed(found, **options))


def test_gradients_of_a_kernel_cost_what_they_compute_again() -> None:
    """A kernel's work is counted by its factors, so that devices have parts of it."""
    module = with_kernel(attention(gradient="autograd"))
    forward = "2*b*h*q*k*d of two products, 8 x 8 places of 4 elements"
    assert kernels(module)["mine"].flops.data == str(4 * 8 * 8 * 4) + "*a*b", forward
    DifferentiatePass().apply(Context(), module)
    assert kernels(module)["mine_grad"].flops.data.endswith("*a*b")
    whole, split = (simulate(distributed(module, **o)) for o in ({}, {"d": 2, "t": 2}))
    plain = gpt()
    DifferentiatePass().apply(Context(), plain)
    assert (
        sum(split.flops) == sum(whole.flops) > sum(simulate(distributed(plain)).flops)
    )


def test_a_workspace_is_in_memory_while_the_kernel_runs() -> None:
    def peak(**options: int) -> int:
        kernel = attention(rule=RULE, keep="q k", workspace="1000000*b*h")
        return max(
            simulate(distributed(with_kernel(kernel), **options)).peak_memory_bytes
        )

    one = peak()
    assert 16_000_000 < one < 17_000_000
    assert 4_000_000 < peak(d=2, t=2) < 5_000_000


@pytest.mark.parametrize(
    ("rule", "keep", "message"),
    [
        (
            RULE,
            "q",
            r"lets 'k' be split.*onnx.Attention.*keep 'k' whole \(`keep='k q'`\)",
        ),
        (RULE, "k", r"lets 'q' be split.*keep 'q' whole"),
        ("[b, q, c], [b, k, c], [b, k, c] -> [b, q, c]", "q k", "lets 'c' be split"),
        (
            "[b, q, c], [b, k, c], [b, k, c] -> [q, b, c]",
            "q k c",
            "4 elements cannot be",
        ),
        ("[b, q, c], [b, k, c] -> [b, q, c]", "", "is for 2 operands"),
        ("[b, q c], [b, k, c], [b, k, c] -> [b, q, c]", "", "for a tensor of shape"),
        (
            "[b, q, h c], [b, k, h c], [b, k, h c] -> [b, q, h c]",
            "",
            "do not tell the s",
        ),
        ("[b, b, c], [b, k, c], [b, k, c] -> [b, b, c]", "", "has a factor twice"),
        ("[b, q, c], [b, k, c], [b, k, c] -> [b, q, z]", "", "no operand has 'z'"),
        ("b q c", "", "cannot read the rule"),
        (RULE, "z", "no factor 'z' to keep"),
    ],
)
def test_rules_are_proved(rule: str, keep: str, message: str) -> None:
    where = r"test_kernels.py, line \d+: kernel 'mine' \(mine:attention\): .*"
    with pytest.raises(DistIRError, match=where + message):
        with_kernel(attention(rule=rule, keep=keep))


def test_what_a_rule_lets_split_is_split_as_asked() -> None:
    """Columns and rows around the kernel need no communication but the all-reduces."""
    s = Schedule()
    layer = s["transformer.h.2"]
    layer["attn"].find(patterns.causal_attention).replace(attention())
    layer["mlp"].find(patterns.bias_gelu_tanh).replace(
        Kernel("bias_gelu", "mine:bias_gelu")
    )
    layer["attn.c_proj"].split(Rows("t"))
    layer.plan({"mlp.c_fc": Columns("t"), "mlp.c_proj": Rows("t")})
    layer.expect("t", all_reduce=2)
    module = gpt()
    found = scheduled(module, s)
    assert kernels(found)["bias_gelu"].rule.data == "[a, b, c], [c] -> [a, b, c]"
    assert_same_results(module, distributed(found, t=2))


def test_a_call_must_be_what_its_kernel_says() -> None:
    module = with_kernel(attention(rule=RULE, keep="q k"))
    module = distributed(module, t=2)
    kernel = kernels(module)["mine"]
    (call,) = (op for _, op in walk_functions(module) if isinstance(op, KernelCallOp))
    lie = StringAttr(RULE + " keep q")
    call.properties["rule"] = lie
    with pytest.raises(VerifyException, match=r"but its kernel\.def says"):
        module.verify()
    kernel.properties["rule"] = lie
    module.verify()
    with pytest.raises(DistIRError, match="kernel @mine: its rule lets 'k' be split"):
        verify_distribution(module)


def test_one_value_is_one_argument_of_a_kernel() -> None:
    """Which use of it a gradient is of would not be clear."""
    module = elementwise("a = Tanh(x)", "b = Mul(a, a)")
    s = Schedule()
    s.find(lambda x, y: x * y).replace(Kernel("mine", "mine:product"))
    with pytest.raises(DistIRError, match="two arguments of the pattern are the same"):
        scheduled(module, s)
    s = Schedule()
    s.find(lambda x: x * x).replace(Kernel("mine", "mine:square"))
    assert_same_results(module, scheduled(module, s))


@pytest.mark.parametrize(
    "plan", sampled([{"p": 2, "k": 2, "d": 2}, {"d": 2, "t": 2}], 2)
)
def test_searches_price_kernels_as_the_simulator_does(plan: dict[str, int]) -> None:
    """Pipelines too, whose programs are never made."""
    module = with_kernel(attention(rule=RULE, keep="q k", gradient="autograd"))
    DifferentiatePass().apply(Context(), module)
    replace_cluster(module, load_cluster("cpu"))
    found = Evaluator(lambda batch: module.clone()).evaluate(GridPlan(4, **plan))
    distribute(module, GridPlan(4, **plan).options())
    simulation = simulate(module)
    assert isinstance(found, Simulated)
    assert found.step_time_s == simulation.step_time_s
    assert found.peak_memory_bytes == max(simulation.peak_memory_bytes)
