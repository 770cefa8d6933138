"""Groups of ops that are found by patterns, and what schedules make of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.elementwise import elementwise
from support.imported_programs import program
from support.schedules import assert_same_results, gpt, scheduled
from support.thoroughness import sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import COMPILED, RECOMPUTE
from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.lowering.program_source import program_source
from distir.passes.differentiate import DifferentiatePass
from distir.program import functions, walk_functions
from distir.scheduling import Columns, Kernel, Schedule, onnx

Pattern = Callable[..., object]
HERE = r"test_find.py, line \d+: "


def kinds(module: ModuleOp) -> Counter[str]:
    """How many ops of each kind the functions of a program hold."""
    return Counter(op.name for _, op in walk_functions(module))


def fusing(module: ModuleOp, pattern: Pattern) -> ModuleOp:
    """The program with the groups that compute a pattern as functions."""
    s = Schedule()
    s.find(pattern).fuse("group")
    found = scheduled(module, s)
    assert_same_results(module, found)
    return found


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias)


@pytest.mark.parametrize(
    ("lines", "pattern", "count"),
    [
        # Operands of commutative ops in any order, constants by value.
        (("a = Add(y, x)", "b = Relu(a)"), lambda x, y: F.relu(x + y), 1),
        (("c = 0.5", "a = Mul(c, x)", "b = Tanh(a)"), lambda x: torch.tanh(x * 0.5), 1),
        (
            ("c = 0.25", "a = Mul(x, c)", "b = Tanh(a)"),
            lambda x: torch.tanh(x * 0.5),
            0,
        ),
        (("a = Sub(y, x)", "b = Relu(a)"), lambda x, y: F.relu(y - x), 1),
        # A value that the pattern has once is one value.
        (("a = Sigmoid(x)", "b = Mul(a, x)"), lambda x: x * torch.sigmoid(x), 1),
        (("a = Sigmoid(x)", "b = Mul(a, y)"), lambda x: x * torch.sigmoid(x), 0),
        (("a = Sigmoid(x)", "b = Mul(a, x)"), lambda x: F.silu(x), 1),
        # Two branches of one kind, each with an op of its own.
        (
            ("a = Tanh(x)", "b = Tanh(y)", "c = Exp(b)", "d = Add(c, a)"),
            lambda x, y: torch.tanh(x) + torch.exp(torch.tanh(y)),
            1,
        ),
        (("a = Tanh(x)", "b = Add(a, a)"), lambda x, y: x.tanh() + y.tanh(), 0),
        # What is between them in the program does not matter.
        (
            ("a = Add(x, y)", "z = Exp(y)", "b = Relu(a)", "c = Sub(b, z)"),
            lambda x, y: torch.relu(x + y),
            1,
        ),
        (("a = Tanh(x)", "b = Tanh(a)", "c = Tanh(b)"), lambda x: -x, 0),
    ],
)
def test_patterns_are_found_as_graphs(
    lines: tuple[str, ...], pattern: Pattern, count: int
) -> None:
    s = Schedule()
    s.find(pattern, optional=True).fuse("group")
    module = elementwise(*lines)
    found = scheduled(module, s)
    assert kinds(found)["func.call"] == count
    assert_same_results(module, found)
    if not count:
        s = Schedule()
        s.find(pattern).fuse("group")
        with pytest.raises(
            DistIRError, match=HERE + "the model has no ops that compute"
        ):
            scheduled(module, s)


@pytest.mark.parametrize("outlined", sampled([True, False], 2))
def test_groups_of_all_layers_become_one_function(outlined: bool) -> None:
    module = program("bert", outlined)
    found = fusing(module, bias_gelu)
    assert kinds(found)["func.call"] == kinds(module)["func.call"] + 2 - outlined
    (group,) = functions(found).keys() - functions(module).keys()
    body = functions(found)[group]
    assert COMPILED.of(body.attributes) == "eager"
    assert [op.name for op in body.body.block.ops][:2] == ["onnx.Add", "onnx.Gelu"]
    for options in ({"d": 2, "t": 2}, {"p": 2, "k": 2}):
        assert_same_results(module, distributed(found, **options))


def test_a_group_of_one_layer_gives_it_a_function_of_its_own() -> None:
    module = gpt(layers=4)
    s = Schedule()
    s["transformer.h.2"].find(lambda x, b: F.gelu(x + b, approximate="tanh")).fuse(
        "mine"
    )
    s["transformer.h.2.mlp.c_fc"].split(Columns("t"))
    found = scheduled(module, s)
    assert functions(found).keys() - functions(module).keys() == {"mine", "layer_1"}
    assert str(found).count("call @layer_1(") == 1
    assert str(found).count("call @layer(") == 3
    assert_same_results(module, distributed(found, t=2))


def test_a_found_group_trains() -> None:
    module = program("bert", True)
    found = fusing(module, bias_gelu)
    steps: list[ModuleOp] = []
    for sequential in (module, found):
        step = sequential.clone()
        DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=0.1).apply(
            Context(), step
        )
        steps.append(step)
    for options in ({"d": 2, "t": 2}, {"p": 2, "k": 2, "checkpoint": "full"}):
        assert_same_results(steps[0], distributed(steps[1], **options))


def test_a_compiler_runs_a_group_as_one_kernel() -> None:
    """In the package a compiled function; for the simulator, one that saves traffic."""
    seconds: list[float] = []
    for backend in ("eager", "inductor"):
        s = Schedule()
        s["**.h.*"].find(lambda x, b: F.gelu(x + b, approximate="tanh")).fuse(
            "bias_gelu", backend
        )
        step = scheduled(gpt(layers=2), s)
        seconds.append(simulate(distributed(step, t=2)).step_time_s)
        DifferentiatePass(optimizer="sgd").apply(Context(), step)
        for options in ({"t": 2}, {"p": 2, "k": 2}):
            found = distributed(step, **options)
            text = program_source(found).text
            compiled = text.count("@torch.compile(dynamic=False)\n    def bias_gelu")
            assert compiled == 2 * options.get("p", 1) * (backend == "inductor")
    assert seconds[1] < seconds[0]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The core of PyTorch's attention with a mask, where whole rows are masked."""
    probabilities = F.softmax(q @ k + mask, -1)
    return torch.where(torch.isnan(probabilities), 0.0, probabilities) @ v


def residuals(step: ModuleOp) -> int:
    """How many values forwards give."""
    return sum(
        len(function.function_type.outputs)
        for name, function in functions(step).items()
        if name.endswith("_forward")
    )


@pytest.mark.parametrize("outlined", sampled([True, False], 2))
def test_recomputed_groups_keep_their_inputs_alone(outlined: bool) -> None:
    """Attention from its scores on: neither masked scores nor probabilities are kept."""
    module = program("bert", outlined)
    s = Schedule()
    core = s["encoder.layer.*"].find(attention)
    core.recompute()
    asked = scheduled(module, s)
    assert str(asked).count(f"{RECOMPUTE} =") == (5 if outlined else 2)
    assert_same_results(module, asked)
    kept: list[int] = []
    for sequential in (module, asked):
        step = sequential.clone()
        DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=0.1).apply(
            Context(), step
        )
        kept.append(residuals(step))
        if sequential is asked:
            found = distributed(step, d=2, t=2)
            assert f"{RECOMPUTE} =" not in str(found)
            assert_same_results(step, found)
    # Not two kinds of probabilities, nor which are no numbers; but the mask, an input.
    if outlined:
        assert kept[1] == kept[0] - 3 + 1


def test_an_operator_replaces_what_computes_the_same() -> None:
    module = elementwise("a = Sigmoid(x)", "b = Mul(x, a)", "c = Add(b, y)")
    s = Schedule()
    s.find(lambda x: x * torch.sigmoid(x)).replace(onnx("Swish"))
    found = scheduled(module, s)
    assert kinds(found)["onnx.Swish"] == 1 and not kinds(found)["onnx.Sigmoid"]
    assert_same_results(module, found)


def test_groups_may_use_what_others_computed() -> None:
    lines = "a = Sigmoid(x)", "b = Mul(x, a)", "c = Sigmoid(b)", "d = Mul(c, b)"
    module = elementwise(*lines)
    for other in (onnx("Swish"), Kernel("swish", "mine:swish")):
        s = Schedule()
        s.find(lambda x: x * torch.sigmoid(x)).replace(other)
        found = scheduled(module, s)
        assert sum(kinds(found).values()) == 3 and not kinds(found)["onnx.Sigmoid"]
        assert_same_results(module, found)


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (
            onnx("Swish", alpha=1.01),
            "onnx.Swish does not compute what the group does that "
            r"ends with onnx.Mul %b: on random inputs its results are \d",
        ),
        (
            onnx("Shape"),
            "onnx.Shape does not .*: it gives tensor<2xi64> instead of tensor<4x6xf32>",
        ),
        (onnx("Swisch"), "onnx.Swisch: ONNX has no operator 'Swisch'"),
        (onnx("Swish", beta=1.0), "onnx.Swish: it has no attribute 'beta'"),
        (onnx("Add"), "onnx.Add"),
    ],
)
def test_other_operators_are_refused(operator: object, message: str) -> None:
    s = Schedule()
    s.find(lambda x: x * torch.sigmoid(x)).replace(operator)  # type: ignore[arg-type]
    with pytest.raises(DistIRError, match=HERE + message):
        scheduled(elementwise("a = Sigmoid(x)", "b = Mul(x, a)"), s)


def test_ops_are_decomposed() -> None:
    module = program("bert", True)
    s = Schedule()
    s["pooler.dense"].decompose()
    s["pooler"].find(lambda x, b: torch.tanh(x + b)).fuse("bias_tanh")
    found = scheduled(module, s)
    assert kinds(found)["onnx.Add"] == kinds(module)["onnx.Add"] + 1
    assert_same_results(module, found)
    s = Schedule()
    s["encoder.layer.0.output"].decompose()
    with pytest.raises(DistIRError, match=HERE + "nothing in it has a decomposition"):
        scheduled(module, s)


def test_modules_by_regular_expressions() -> None:
    s = Schedule()
    s["encoder"].find(re.compile(r"layer\.\d+\..*\.(query|key)")).split(Columns("t"))
    assert str(scheduled(program("bert", True), s)).count("dist.fixed =") == 8


@pytest.mark.parametrize(
    ("lines", "script", "message"),
    [
        (
            ("a = Tanh(x)", "b = Tanh(a)", "c = Tanh(b)"),
            lambda s: s.find(lambda x: x.tanh().tanh()).fuse("two"),
            r"two of the groups overlap: onnx.Tanh %b is in that which ends with "
            "onnx.Tanh %c and in that which ends with onnx.Tanh %b",
        ),
        (
            ("a = Tanh(x)", "b = Exp(a)", "c = Add(a, b)"),
            lambda s: s.find(lambda x: x.tanh().exp()).fuse("two"),
            "onnx.Add %c uses what onnx.Tanh %a computes, a value inside of the group",
        ),
        (
            ("a = Tanh(x)", "b = Exp(a)"),
            lambda s: [f.fuse("two") for f in [s.find(lambda x: x.tanh().exp())] * 2],
            r"these ops are not .*: test_find.py, line \d+ consumed them",
        ),
        (
            ("a = Tanh(x)", "b = Exp(a)", "c = Exp(b)"),
            lambda s: [
                f.fuse("two")
                for f in (
                    s.find(lambda x: x.tanh().exp()),
                    s.find(lambda x: x.exp().exp()),
                )
            ],
            r"onnx.Exp %b, which was found before, is not in the program any more: test_find",
        ),
        (
            ("a = Tanh(x)",),
            lambda s: s.find(lambda x: torch.linalg.norm(x)),
            "a pattern cannot hold 'linalg_norm'; it may have abs, add",
        ),
        (
            ("a = Tanh(x)",),
            lambda s: s.find(lambda x: x if x > 0 else -x),
            "the pattern cannot be traced",
        ),
        (
            ("a = Tanh(x)",),
            lambda s: s.find(lambda x: (x, x)),
            "a pattern computes one value; return that",
        ),
    ],
)
def test_what_cannot_be_found_or_rewritten(
    lines: tuple[str, ...], script: Callable[[Schedule], object], message: str
) -> None:
    s = Schedule()
    with pytest.raises(DistIRError, match=HERE + message):
        script(s)
        scheduled(elementwise(*lines), s)
