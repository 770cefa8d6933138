"""
Pipelines of programs of any shape compute what the sequential programs do, and what
cannot be a pipeline is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.pipelines import Array, arguments_of, assert_same, distributed
from support.programs import parse
from support.random_programs import Draw, ProgramBuilder, programs, shape_of
from support.random_programs import arguments_of as random_values
from support.random_programs import assert_same_results as assert_same_random
from support.thoroughness import chosen, each_once, tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.func import CallOp
from xdsl.ir import OpResult, SSAValue

from distir.dialects.dist import SendOp, layout_of
from distir.dialects.dist_attributes import SCOPE
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.passes.pipeline import PipelinePass
from distir.program import ancestors, entry_function, functions, scope_of
from distir.transforms.pipelines.balance import division

WIDTH = 4
SETTINGS = settings(deadline=None, suppress_health_check=tuple(HealthCheck))


@dataclass
class DagBuilder(ProgramBuilder):
    """A trainable model on [batch, 4] values: layers, skips, branches that meet again."""

    batch: int = 8
    layers: int = 0

    def layer(self, x: SSAValue) -> SSAValue:
        """A matrix product, of a new matrix or one that is used already."""
        weight = self.parameter((shape_of(x)[1], WIDTH))
        product = self.op("MatMul", [x, weight], (self.batch, WIDTH))
        assert isinstance(product, OpResult)
        product.op.attributes[SCOPE] = StringAttr(f"layers.{self.layers}")
        self.layers += 1
        return self.op("Tanh", [product], (self.batch, WIDTH))

    def step(self) -> SSAValue:
        """One more value from those that there are."""
        x, y = (self.draw(st.sampled_from(self.values)) for _ in range(2))
        same = (self.batch, WIDTH)
        kind = self.draw(
            st.sampled_from(["layer", "layer", "add", "mul", "join", "bias"])
        )
        if kind == "layer":
            return self.layer(x)
        if kind == "join":
            both = self.op("Concat", [x, y], (self.batch, 2 * WIDTH), axis=1)
            return self.layer(both)
        if kind == "bias":
            return self.op("Add", [x, self.parameter((WIDTH,))], same)
        return self.op("Add" if kind == "add" else "Mul", [x, y], same)


@st.composite
def models(draw: Draw) -> tuple[ModuleOp, int, list[str]]:
    """A random directed acyclic model, its batch, and the layers of its first result."""
    batch = draw(st.sampled_from([4, 6, 8]))
    builder = DagBuilder(draw, batch=batch)
    for _ in range(draw(st.integers(1, 2))):
        builder.values.append(builder.argument("input", (batch, WIDTH)))
    for _ in range(draw(st.integers(3, 9))):
        builder.values.append(builder.step())
    last = builder.layer(builder.values[-1])
    results = [last, *draw(st.lists(st.sampled_from(builder.values), max_size=2))]
    module = ModuleOp([builder.function("main", results)])
    module.verify()
    needed = ancestors([last])
    ops = (op for op in builder.block.ops if op in needed)
    return module, batch, [scope for op in ops if (scope := scope_of(op))]


@st.composite
def strategies(
    draw: Draw, batch: int, layers: list[str], trains: bool
) -> dict[str, Any]:
    """A random strategy that the batch and the layers allow."""
    kinds = {"forward": draw(st.integers(1, 2))}
    if trains:
        kinds = dict.fromkeys(["gpipe", "1f1b", "zb-h1"], 1)
        kinds |= dict.fromkeys(["interleaved-1f1b", "zbv", "dualpipev"], 2)
    possible = [name for name, chunks in kinds.items() if chunks <= len(layers)]
    assume(possible)
    schedule = draw(st.sampled_from(possible))
    chunks = kinds[schedule]
    p = draw(st.integers(1, min(4, len(layers) // chunks)))
    splits = [(k, d) for k in range(1, 9) for d in (1, 2) if batch % (k * d) == 0]
    k, d = draw(st.sampled_from([s for s in splits if p * s[0] > 1]))
    stages: list[str] = []
    if draw(st.booleans()) and p * chunks > 1:
        places = st.integers(1, len(layers) - 1)
        count = p * chunks - 1
        chosen = draw(st.sets(places, min_size=count, max_size=count))
        stages = [layers[i] for i in sorted(chosen)]
    return {
        "p": p,
        "k": k,
        "d": d,
        "schedule": schedule,
        "chunks": chunks,
        "stages": tuple(stages),
        "blocking_sends": draw(st.booleans()),
    }


@settings(SETTINGS, max_examples=tries(60))
@given(st.data())
def test_random_models_train(data: st.DataObject) -> None:
    module, batch, layers = data.draw(models())
    optimizer = data.draw(st.sampled_from(["none", "sgd", "adamw"]))
    DifferentiatePass(loss="mse", optimizer=optimizer).apply(Context(), module)
    options = data.draw(strategies(batch, layers, trains=True))
    assert_same_random(module, distributed(module, **options), arguments_of(module))


@settings(SETTINGS, max_examples=tries(40))
@given(st.data())
def test_random_models_infer(data: st.DataObject) -> None:
    module, batch, layers = data.draw(models())
    options = data.draw(strategies(batch, layers, trains=False))
    assert_same_random(module, distributed(module, **options), arguments_of(module))


@settings(SETTINGS, max_examples=tries(80))
@given(programs(), st.sampled_from([(1, 2, 2), (2, 4, 1), (2, 1, 1), (2, 2, 2)]))
def test_random_ops(module: ModuleOp, degrees: tuple[int, int, int]) -> None:
    """Ops of every kind, on micro-batches where they allow it, or else after them."""
    p, k, d = degrees
    try:
        result = distributed(module, p=p, k=k, d=d)
    except DistIRError as error:
        refusals = (
            "whole batch",
            "stages were asked for",
            "nothing to pipeline",
            "lie between each other",
        )
        assert any(text in str(error) for text in refusals), str(error)
        assume(False)
        return
    assert_same_random(module, result, random_values(module))


MLP = """
func.func @main(
    %w0: tensor<4x4xf32> {{dist.role = "parameter", dist.name = "l0.weight"}},
    %w1: tensor<4x4xf32> {{dist.role = "parameter", dist.name = "l1.weight"}},
    %x: tensor<8x4xf32> {{dist.role = "input", dist.name = "x"}}{arguments}
) -> ({types}) {{
  %h = onnx.MatMul(%x, %w0) {{scope = "l0"}} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %a = onnx.Tanh(%h) {{scope = "l0"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = onnx.MatMul(%a, %w1) {{scope = "l1"}} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
{ops}
  func.return {values} : {types}
}}
"""


def two_layers(ops: str, values: str, types: str, arguments: str = "") -> ModuleOp:
    """Two layers (%a after the first, %y after the second) and more."""
    result_types = types
    text = MLP.format(ops=ops, values=values, types=result_types, arguments=arguments)
    return parse(text)


SUMS = """
  %s = onnx.ReduceSum(%a) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
  %t = onnx.ReduceSum(%y) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
  %u = onnx.Add(%s, %t) : (tensor<f32>, tensor<f32>) -> tensor<f32>
"""


@pytest.mark.parametrize("p", [1, 2])
def test_sums_of_sums(p: int) -> None:
    """A value that is accumulated and used for each micro-batch too is two values."""
    module = two_layers(SUMS, "%u, %s, %t", "tensor<f32>, tensor<f32>, tensor<f32>")
    assert_same(module, p=p, k=4)


def test_state_with_a_batch_dimension() -> None:
    """Each micro-batch reads and replaces its part, as of a cache of keys and values."""
    module = parse(
        MLP.format(
            arguments=', %c: tensor<8x4xf32> {dist.role = "state", dist.name = "c"}',
            ops="  %n = onnx.Add(%c, %y) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>",
            values="%y, %n",
            types="tensor<8x4xf32>, tensor<8x4xf32>",
        ).replace(
            "-> (tensor<8x4xf32>, tensor<8x4xf32>)",
            '-> (tensor<8x4xf32>, tensor<8x4xf32> {dist.updates = "c"})',
        )
    )
    assert_same(module, p=2, k=4, d=2)


def test_arguments_and_constants_pass_through() -> None:
    """Results that no stage computes, or that do not depend on the batch."""
    module = two_layers(
        "  %z = onnx.Add(%w0, %w1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>",
        "%x, %w1, %z, %y",
        "tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<8x4xf32>",
    )
    assert_same(module, p=2, k=2, d=2)


def test_ops_that_nothing_needs() -> None:
    """They are no backward."""
    module = two_layers(
        "  %z = onnx.Relu(%a) : (tensor<8x4xf32>) -> tensor<8x4xf32>",
        "%y",
        "tensor<8x4xf32>",
    )
    assert_same(module, p=2, k=2)


SIMILARITY = """
  %b = onnx.Transpose(%y) {perm = [1, 0], scope = "clip"} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %g = onnx.MatMul(%a, %b) {scope = "clip"} : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %e = onnx.Softmax(%g) {scope = "clip"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
"""


def test_whole_batch_after_the_micro_batches() -> None:
    """What compares all samples with each other, as a contrastive loss does."""
    module = two_layers(SIMILARITY, "%e", "tensor<8x8xf32>")
    assert_same(module, p=2, k=4)


def test_whole_batch_within_micro_batches() -> None:
    """Its gradients would come too late, unless there is a single micro-batch."""
    module = two_layers(SIMILARITY, "%e", "tensor<8x8xf32>")
    DifferentiatePass(loss="mse", optimizer="none").apply(Context(), module)
    assert_same(module, p=2, k=1)
    with pytest.raises(DistIRError, match=r"onnx.\w+ .*\(in clip\) makes of the whole"):
        distributed(module, p=2, k=2)


@pytest.mark.parametrize(("k", "d"), each_once([1, 4], [1, 2]))
def test_labels_that_do_not_count(k: int, d: int) -> None:
    """Their number in the whole batch divides the loss."""
    module = build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    loss = DifferentiatePass(optimizer="none", ignore_index=3)
    loss.apply(Context(), module)
    assert_same(module, p=2, k=k, d=d)


def test_what_inputs_say_is_known_before() -> None:
    """The number of labels that count is, without waiting for the last micro-batch."""
    module = build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    loss = DifferentiatePass(optimizer="none", ignore_index=3)
    loss.apply(Context(), module)
    main = entry_function(distributed(module, p=2, k=4))
    ops = list(main.body.block.ops)
    (count,) = (i for i, op in enumerate(ops) if op.name == "onnx.ReduceSum")
    assert shape_of(ops[count].operands[0]) == (8, 4)
    backwards = [
        i
        for i, op in enumerate(ops)
        if isinstance(op, CallOp) and "backward" in op.callee.string_value()
    ]
    assert count < backwards[0]


@pytest.mark.parametrize(
    ("degrees", "schedule"),
    chosen(
        product([(1, 4, 1), (2, 4, 1), (2, 2, 2)], ["1f1b", "zb-h1"]),
        [((2, 2, 2), "zb-h1")],
    ),
)
def test_dropout(degrees: tuple[int, int, int], schedule: str) -> None:
    """A micro-batch draws the numbers of its place in the batch."""
    p, k, d = degrees
    module = build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4, dropout=0.3)
    DifferentiatePass(optimizer="none").apply(Context(), module)
    assert_same(module, p=p, k=k, d=d, schedule=schedule)


def test_clipping() -> None:
    """The norm of the gradients of all stages."""
    module = build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    DifferentiatePass(optimizer="sgd", clip=0.01).apply(Context(), module)
    assert_same(module, p=2, k=4, d=2)


def test_mixed_precision() -> None:
    module = build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4, dtype="f16")
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    assert_same(module, p=2, k=4, tolerance=2e-2)


def test_one_sample() -> None:
    """Nothing can be split; ops that depend on inputs are those of the micro-batch."""
    module = build_mlp(layers=3, d_model=8, batch=1)
    assert_same(module, p=3, k=1)
    gradients = module.clone()
    DifferentiatePass(loss="mse", optimizer="none").apply(Context(), gradients)
    assert_same(gradients, p=2, k=1, schedule="zb-h1")
    DifferentiatePass(loss="mse").apply(Context(), module)
    with pytest.raises(DistIRError, match="batch is a single sample"):
        distributed(module, p=2, k=1)


def sends(module: ModuleOp) -> list[tuple[SendOp, str]]:
    """The sends of the entry function, and the mesh that each goes to."""
    ops = entry_function(module).body.block.ops
    found = [op for op in ops if isinstance(op, SendOp)]
    return [(op, layout.mesh) for op in found if (layout := layout_of(op.result))]


def test_values_are_sent_once_to_each_stage_that_needs_them() -> None:
    """The output of stage 0 goes straight to stages 1 and 2, whatever uses it there."""
    text = MLP.format(
        arguments="",
        ops="""
  %z = onnx.MatMul(%y, %w0) {scope = "l2"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %r = onnx.Add(%z, %a) {scope = "l2"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %q = onnx.Mul(%r, %a) {scope = "l2"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
""",
        values="%q",
        types="tensor<8x4xf32>",
    )
    result = assert_same(parse(text), p=3, k=2, stages=("l1", "l2"))
    found = [(op.source.name_hint, mesh) for op, mesh in sends(result)]
    # For each of two micro-batches; the tied matrix goes to the other stage once.
    for expected, count in (
        (("a", "stage1"), 2),
        (("a", "stage2"), 2),
        (("y", "stage2"), 2),
        (("w0", "stage2"), 1),
    ):
        assert found.count(expected) == count, (expected, found)
    assert len(found) == 7


def test_tied_weights_are_summed_once() -> None:
    """GPT's embedding is its output matrix: the gradients meet after the micro-batches."""
    module = build_gpt(4, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    DifferentiatePass(optimizer="none").apply(Context(), module)
    result = assert_same(module, p=2, k=4)
    shape = (16, 8)
    meshes = [mesh for op, mesh in sends(result) if shape_of(op.result) == shape]
    # The weights go to the last stage, and the sum of its gradients comes back.
    assert sorted(meshes) == ["stage0", "stage1"]
    # They leave before their stage is busy: the first stage runs ahead of the others.
    ops = list(entry_function(result).body.block.ops)
    early = next(i for i, op in enumerate(ops) if isinstance(op, CallOp))
    assert any(
        shape_of(op.result) == shape for op in ops[:early] if isinstance(op, SendOp)
    )


def test_stages_of_equal_work_have_equal_layers() -> None:
    module = build_mlp(layers=8, d_model=64, batch=64)
    result = distributed(module, p=4, k=2)
    for stage in range(4):
        function = functions(result)[f"stage{stage}_forward"]
        layers = [op for op in function.body.block.ops if isinstance(op, CallOp)]
        assert len(layers) == 2, stage


def test_layers_stay_functions() -> None:
    """Also where zero-bubble schedules split the backward."""
    module = build_gpt(4, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    DifferentiatePass(optimizer="none").apply(Context(), module)
    result = distributed(module, p=2, k=4, schedule="zb-h1")
    names = set(functions(result))
    for stage in (0, 1):
        for half in ("input", "weight"):
            name = f"layer_backward_{half}_stage{stage}"
            assert name in names
            function = functions(result)[f"stage{stage}_backward_{half}"]
            inner = [op for op in function.body.block.ops if isinstance(op, CallOp)]
            assert [op.callee.string_value() for op in inner] == [name] * 2


def test_programs_without_a_batch_are_refused() -> None:
    module = two_layers(SUMS, "%u", "tensor<f32>")
    for argument in entry_function(module).body.block.args:
        assert isinstance(argument.type, TensorType)
        assert argument.type.element_type == f32
    text = str(module).replace('dist.role = "input"', 'dist.role = "constant"')
    with pytest.raises(DistIRError, match="no input with a batch dimension"):
        distributed(parse(text), p=2, k=2)


def test_batch_split_over_devices_first_is_refused() -> None:
    """Its micro-batches would be rows from all over the batch."""
    module = parse("""
device.mesh @mesh on @c <k = 2, d = 2> [0 to 4]
func.func @main(
    %x: tensor<8x4xf32, #dist.layout<@mesh, [{d, k}, {}]>> {dist.name = "x"}
) -> tensor<8x4xf32, #dist.layout<@mesh, [{d, k}, {}]>> {
  %y = onnx.Relu(%x) : (tensor<8x4xf32, #dist.layout<@mesh, [{d, k}, {}]>>) -> tensor<8x4xf32, #dist.layout<@mesh, [{d, k}, {}]>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh, [{d, k}, {}]>>
}
""")
    with pytest.raises(DistIRError, match="argument 'x' is split over 'd' and then"):
        PipelinePass(p=1).apply(Context(), module)


def test_divisions() -> None:
    """The least load of the busiest stage; then the least that is sent."""
    random = np.random.default_rng(0)
    for _ in range(tries(200)):
        size = int(random.integers(2, 9))
        layers = np.concatenate(([0], np.cumsum(random.integers(0, 2, size))))
        for count in range(1, int(layers[-1]) + 1):
            weights = random.integers(0, 6, (count, size)).astype(float)
            crossing = random.integers(0, 5, (count, size + 1)).astype(float)
            crossing[:, 0] = 0
            cuts = division(weights, crossing, layers)
            found = _loads(weights, crossing, layers, cuts)
            every = combinations(range(1, size), count - 1)
            best = min(
                loads
                for c in every
                if (loads := _loads(weights, crossing, layers, c)) is not None
            )
            assert found == pytest.approx(best)


def _loads(
    weights: Array, crossing: Array, layers: Array, cuts: Sequence[int]
) -> tuple[float, float] | None:
    """The largest load and what is sent; None for a stage without a layer."""
    ends = list(pairwise((0, *cuts, weights.shape[1])))
    if any(layers[a] == layers[b] for a, b in ends):
        return None
    loads = [
        own[a:b].sum() + price[a]
        for own, price, (a, b) in zip(weights, crossing, ends, strict=True)
    ]
    prices = zip(crossing, ends, strict=True)
    return max(loads), sum(price[a] for price, (a, _) in prices)
