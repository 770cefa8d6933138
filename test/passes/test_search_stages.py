"""`search-stages`: the program stays the same, and no simple division is faster."""

from __future__ import annotations

from typing import Any

import pytest
from support.imported_programs import imported, program
from support.llama_programs import llama_step
from support.pipelines import assert_same, distributed
from support.programs import parse
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import STAGE
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.distribute import DistributePass
from distir.passes.partition import PartitionPass
from distir.passes.search_stages import SearchStagesPass
from distir.planning.annotations import read_notes
from distir.planning.distribution.distribute import choose_layouts
from distir.planning.distribution.options import DistributionOptions
from distir.program import entry_function, functions
from distir.transforms.pipelines.stages import mark

SEARCH = ("search",)


def built(name: str) -> ModuleOp:
    if name == "mlp":
        return training_mlp()
    if name == "gpt":
        return training_gpt(layers=4)
    if name == "gpt inference":
        return build_gpt(layers=4, d_model=16, heads=4, vocab=32, batch=4, seq=8)
    name, *rest = name.split()
    return program(name, "flat" not in rest, "adamw")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"p": 2, "k": 4}),
        ("gpt", {"p": 3, "k": 2, "d": 2}),
        ("gpt", {"p": 2, "k": 2, "schedule": "zbv"}),
        ("gpt inference", {"p": 4, "k": 2, "t": 2}),
        pytest.param("unet_deep", {"p": 3, "k": 4}, marks=pytest.mark.slow),
        pytest.param(
            "encoder_decoder_deep flat", {"p": 4, "k": 2}, marks=pytest.mark.slow
        ),
        pytest.param("t5", {"p": 3, "k": 2}, marks=pytest.mark.slow),
        pytest.param("resnet", {"p": 4, "k": 2}, marks=pytest.mark.slow),
        pytest.param("llama flat", {"p": 4, "k": 4}, marks=pytest.mark.slow),
    ],
)
def test_same_results(name: str, options: dict[str, Any]) -> None:
    """Distributed, verified and interpreted: the step is that of one device."""
    module = built(name)
    # Random variances of a normalization could be negative.
    weights = imported(name).weights if name == "resnet" else None
    result = assert_same(module, weights=weights, stages=SEARCH, **options)
    assert read_notes(result)[-1].startswith("search-stages divided")
    marks = [
        op
        for f in functions(result).values()
        for op in f.walk()
        if STAGE in op.attributes
    ]
    assert not marks


MODELS = (
    "mlp_deep", "unet_deep", "encoder_decoder_deep", "gpt2_deep",
    "unet", "resnet", "gpt2", "llama", "bert", "t5",
)  # fmt: skip


QUICK = [("unet_deep", 3)]
SLOW = [(f"{n}{kind}", p) for n in MODELS for kind in ("", " flat") for p in (2, 3, 4)]
SLOW += [("gpt", 4)]


@pytest.mark.parametrize(
    ("name", "p"),
    [
        *QUICK,
        *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW if c not in QUICK),
    ],
)
def test_no_simple_division_is_faster(name: str, p: int) -> None:
    """Equal numbers of layers, where layers are functions, and stretches of equal work."""
    module, compared = built(name), 0
    try:
        searched = step_time(module, p=p, stages=SEARCH)
    except DistIRError as error:
        assert "choose fewer stages" in str(error)
        return
    for stages in (("uniform",), ()):
        try:
            simple = step_time(module, p=p, stages=stages)
        except DistIRError as error:
            assert "choose fewer stages" in str(error)
            continue
        assert searched <= simple
        compared += 1
    assert compared


def step_time(module: ModuleOp, **options: Any) -> float:
    return simulate(distributed(module, k=4, **options)).step_time_s


def test_skips_are_cut_where_they_are_few() -> None:
    """The halves of a U-Net belong together: at its bottom most is under way."""
    module = built("unet_deep")
    searched, simple = (
        step_time(module, p=2, stages=stages) for stages in (SEARCH, ())
    )
    assert searched < 0.9 * simple


def test_calls_are_nodes() -> None:
    """What is divided are the layers, however many ops they have."""
    module = llama_step(
        layers=6, batch=4, seq=4, width=8, heads=2, groups=1, hidden=8, vocab=8
    )
    (note,) = read_notes(distributed(module, p=4, k=2, stages=SEARCH))
    assert "divided 10 ops into 4 stages" in note  # 6 layers, and 4 ops around them
    assert "proven to be the best" in note


def lookups_and_products(memory: int) -> ModuleOp:
    """A table of 51 MB, which takes no time, and four matrices of 17 MB, which do."""
    wide, flat = "tensor<8x65536xf32>", "tensor<8x64xf32>"
    up, down = "tensor<64x65536xf32>", "tensor<65536x64xf32>"
    table, ids = "tensor<200000x64xf32>", "tensor<8xi64>"
    return parse(
        f"""
device.cluster @box {{
  device.kind @gpu on [0 to 2] {{memory = {memory} : i64, memory_bandwidth = 9.0e11 : f64,
    peak_flops = {{default = 1.5e13 : f64}}, launch_latency = 5.0e-6 : f64}}
  device.link @switch spans 2 {{bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}}
}}
func.func @main(%t: {table} {{dist.role = "parameter"}}, %i: {ids} {{dist.role = "input"}},
    %w1: {up} {{dist.role = "parameter"}}, %w2: {down} {{dist.role = "parameter"}},
    %w3: {up} {{dist.role = "parameter"}}, %w4: {down} {{dist.role = "parameter"}}) -> {flat} {{
  %x = onnx.Gather(%t, %i) : ({table}, {ids}) -> {flat}
  %a = onnx.MatMul(%x, %w1) : ({flat}, {up}) -> {wide}
  %b = onnx.MatMul(%a, %w2) : ({wide}, {down}) -> {flat}
  %c = onnx.MatMul(%b, %w3) : ({flat}, {up}) -> {wide}
  %d = onnx.MatMul(%c, %w4) : ({wide}, {down}) -> {flat}
  func.return %d : {flat}
}}"""
    )


def test_memory_is_a_limit() -> None:
    """Half of the products beside the table are too much; what fits is taken then."""

    def step(memory: int, stages: tuple[str, ...]) -> tuple[bool, str]:
        module = lookups_and_products(memory)
        DistributePass(p=2, k=2, stages=stages).apply(Context(), module)
        return simulate(module).fits, " ".join(read_notes(module))

    assert not step(76_000_000, ())[0]
    assert step(76_000_000, SEARCH)[0]
    fits, note = step(20_000_000, SEARCH)
    assert not fits
    assert note.endswith("it does not fit into memory")


def test_marks_that_are_no_division() -> None:
    module = lookups_and_products(32_000_000_000)
    *ops, _ = entry_function(module).body.block.ops

    def pipeline(*stages: int) -> ModuleOp:
        marked = module.clone()
        *copies, _ = entry_function(marked).body.block.ops
        mark(dict(zip(copies, stages, strict=False)))
        DistributePass(p=2, k=2).apply(Context(), marked)
        return marked

    assert len(ops) == 5
    first = functions(pipeline(0, 0, 1, 1, 1))["stage0_forward"]
    assert [op.name for op in first.walk()][1:-1] == ["onnx.Gather", "onnx.MatMul"]
    with pytest.raises(
        DistIRError, match=r"MatMul %d has no dist\.stage, though other"
    ):
        pipeline(0, 0, 1, 1)
    with pytest.raises(
        DistIRError, match="marked with stage 0, but needs what stage 1"
    ):
        pipeline(0, 1, 0, 1, 1)
    with pytest.raises(
        DistIRError, match="marked with stages 0 to 2, but the schedule"
    ):
        pipeline(0, 1, 2, 2, 2)


def test_a_time_limit_is_one_for_simulations_too() -> None:
    """Only what is estimated to be the fastest is simulated after it; by default more is."""
    notes: list[str] = []
    for limit in (0.0, None):
        module = built("gpt")
        first = module.body.block.first_op
        assert first is not None
        module.body.block.insert_op_before(load_cluster("cpu", 16), first)
        choose_layouts(module, DistributionOptions(p=3, k=2))
        PartitionPass(lower=False).apply(Context(), module)
        SearchStagesPass(p=3, time_limit=limit).apply(Context(), module)
        notes.append(read_notes(module)[-1])
    assert "; 1 of " in notes[0]
    assert "; 1 of " not in notes[1]
