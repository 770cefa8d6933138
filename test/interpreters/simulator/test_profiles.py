"""Profiles: what their files may hold, and what their figures do to costs."""

import copy
import json
import math
from dataclasses import replace

import pytest
from support.cost_programs import cluster, parse
from xdsl.context import Context
from xdsl.dialects.builtin import StringAttr

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.dialects.op_facts import OpFacts
from distir.dialects.train import Train
from distir.dialects.train_ops.losses import LOGITS_AT_ONCE
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import FOLDER, cluster_names, load_cluster
from distir.hardware.description import ClusterDescription
from distir.interpreters.simulator import report, simulate
from distir.interpreters.simulator.costs.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    topology,
)
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.profiles.files import (
    ProfileChoice,
    load_profile,
    load_profiles,
    profile_names,
)
from distir.interpreters.simulator.profiles.profile import OP_CLASSES, Curve, Profile
from distir.interpreters.simulator.work import Product, Work
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.runtime.layers import losses

DATA = {
    "description": "round numbers",
    "device": "unit",
    "dispatch": {"op": 0.0, "collective": 0.0, "source": "made up"},
    "compute": {
        "default": {
            "contraction": {
                "efficiency": 0.5,
                "bandwidth": 0.5,
                "overhead": 1.0,
                "source": "made up",
            },
            "elementwise": {"bandwidth": 0.25, "overhead": 2.0, "source": "made up"},
        }
    },
    "links": {
        "level0": {
            "bandwidth": 0.5,
            "overhead": 3.0,
            "latency": 1.0,
            "source": "made up",
        }
    },
}


def profile(change=lambda data: None) -> Profile:
    data = copy.deepcopy(DATA)
    change(data)
    return Profile.parse("p", data)


@pytest.mark.parametrize("name", profile_names())
def test_built_in_profiles_are_read(name):
    found = load_profile(name)
    for op_class in ("contraction", "elementwise", "optimizer", "gather"):
        assert found.curve("f16", op_class).bandwidth > 0
    assert found.links["nvlink"].share(8) > 0


def test_classes_of_ops_are_those_of_profiles():
    facts = [op for op in Train.operations if issubclass(op, OpFacts)]
    assert {op.COST_CLASS for op in facts} <= {"", *OP_CLASSES}


@pytest.mark.parametrize("name", [n for n in cluster_names() if n != "cpu"])
def test_clusters_name_profiles_that_know_their_links(name):
    on = load_cluster(name)
    choice = ProfileChoice.of((), on)
    assert choice == ProfileChoice(("auto",))
    hardware = Hardware.of(on, load_profiles(choice.names, on))
    assert hardware.has_profiles
    assert all(level.figures is not None for level in hardware.levels)


def test_without_a_profile_that_is_of_use_there_is_a_reason():
    nameless = ProfileChoice.of((), load_cluster("cpu"))
    assert not nameless.names and "@core of @cpu names no profile" in nameless.lacking
    on = load_cluster("dgx-a100")
    # What the user names is taken as it is.
    assert ProfileChoice.of(("none",), on) == ProfileChoice(("none",))
    assert load_profiles(["none"], on) == []
    with pytest.raises(DistIRError, match="none stands for data sheets alone"):
        load_profiles(["none", "A100"], on)


LOSS = """
  func.func @main(%x: tensor<64x1000xf16>, %i: tensor<64xi64>) -> tensor<f32> {
    %loss = train.cross_entropy %x, %i {divisor = 64 : i64} :
      (tensor<64x1000xf16>, tensor<64xi64>) -> tensor<f32>
    func.return %loss : tensor<f32>
  }
"""


def test_memory_that_a_software_keeps_beside_values():
    program = parse(LOSS)
    on = cluster(1, memory=1_500_000)
    arguments = 64 * 1000 * 2 + 64 * 8
    bare = simulate(program, on, profiles=[profile()])
    # What a package has of the logits in 32 bits: they and their log-softmax.
    copied = 8 * 64 * 1000
    assert bare.peak_memory_bytes == bare.reserved_memory_bytes
    assert bare.peak_memory_bytes == [arguments + 4 + copied]

    def keeps(**figures):
        return profile(lambda d: d.update(memory={**figures, "source": "made up"}))

    blocks = simulate(program, on, profiles=[keeps(logit=0, block=512, libraries=1000)])
    assert blocks.peak_memory_bytes == [arguments + 512 + 1000]
    copies = simulate(program, on, profiles=[keeps(logit=12)])
    assert copies.peak_memory_bytes == [arguments + 4 + 12 * 64 * 1000]
    assert copies.fits
    # Of what is there throughout no fragments are left.
    whole = simulate(program, on, profiles=[keeps(logit=12, fragments=1.0)])
    assert whole.peak_memory_bytes == copies.peak_memory_bytes
    assert whole.reserved_memory_bytes == [arguments + 2 * (4 + 12 * 64 * 1000)]
    assert not whole.fits and whole.too_small == [0]
    assert "B of a device reserved" in report(whole)
    with pytest.raises(DistIRError, match="fragments must be a finite number"):
        keeps(fragments=-1)


def test_losses_in_32_bits_copy_their_log_softmax():
    program = parse(LOSS.replace("f16", "f32"))
    copies = {"logit": 12, "source": "made up"}
    found = simulate(
        program, cluster(1), profiles=[profile(lambda d: d.update(memory=copies))]
    )
    assert found.peak_memory_bytes == [2 * 64 * 1000 * 4 + 64 * 8 + 4]


def test_losses_that_the_model_computes_in_16_bits_copy_their_log_softmax():
    program = parse(LOSS.replace("{divisor", "{dist.narrow_loss, divisor"))
    copies = {"logit": 12, "source": "made up"}
    found = simulate(
        program, cluster(1), profiles=[profile(lambda d: d.update(memory=copies))]
    )
    assert found.peak_memory_bytes == [2 * 64 * 1000 * 2 + 64 * 8 + 4]


def test_a_loss_without_logits_copies_none():
    """CTC takes log-probabilities."""
    types = "tensor<9x4x5xf32>, tensor<4x3xi64>, tensor<4xi64>, tensor<4xi64>"
    program = parse(f"""
      func.func @main(%x: tensor<9x4x5xf32>, %y: tensor<4x3xi64>, %a: tensor<4xi64>,
                      %b: tensor<4xi64>) -> tensor<4xf32> {{
        %loss = train.ctc_loss %x, %y, %a, %b {{blank = 0 : i64}} :
          ({types}) -> tensor<4xf32>
        func.return %loss : tensor<4xf32>
      }}
    """)

    def peak(logit: float) -> list[int]:
        memory = {"logit": logit, "source": "made up"}
        kept = profile(lambda d: d.update(memory=memory))
        return simulate(program, cluster(1), profiles=[kept]).peak_memory_bytes

    assert peak(12) == peak(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("device"), "has no field 'device'"),
        (lambda d: d.update(device=3), "device must be a text, not 3"),
        (lambda d: d.update(more=1), "field 'more' that is not known"),
        (lambda d: d["dispatch"].update(op=-1.0), "op must be a finite number"),
        (lambda d: d["dispatch"].update(op=math.nan), "op must be a finite number"),
        (lambda d: d["dispatch"].pop("source"), "has no field 'source'"),
        (
            lambda d: d["compute"]["default"].update(magic={}),
            "no class of ops 'magic'",
        ),
        (
            lambda d: d["compute"]["default"]["contraction"].update(efficiency=0),
            "efficiency must be a finite number above 0",
        ),
        (
            lambda d: d["compute"]["default"]["contraction"].update(tile=[0, 1]),
            "whole number above 0",
        ),
        (lambda d: d.update(compute=[]), "must be a JSON object"),
        (
            lambda d: d["links"]["level0"].update(bandwidth={"1": 0.5}),
            "'1' is not a number of devices",
        ),
        (lambda d: d.update(fusion=["all"]), "fusion must be a list of some of"),
    ],
)
def test_bad_figures(change, message):
    with pytest.raises(DistIRError, match="profile p") as error:
        profile(change)
    assert message in str(error.value)


def test_unknown_types_and_classes():
    only_f16 = profile(lambda d: d.update(compute={"f16": d["compute"]["default"]}))
    with pytest.raises(DistIRError, match="no figures for contraction ops on f32"):
        only_f16.curve("f32", "contraction")
    with pytest.raises(DistIRError, match="no class of ops 'magic'"):
        only_f16.curve("f16", "magic")
    assert only_f16.curve("f16", "optimizer") is only_f16.curve("f16", "elementwise")


def test_files(tmp_path):
    path = tmp_path / "mine.json"
    with pytest.raises(DistIRError, match="no built-in profile 'mine'"):
        load_profile("mine")
    with pytest.raises(DistIRError, match="there is no profile file"):
        load_profile(path)
    path.write_text("{")
    with pytest.raises(DistIRError, match="not a JSON file"):
        load_profile(path)
    path.write_text(json.dumps({"base": str(path)}))
    with pytest.raises(DistIRError, match="its own base"):
        load_profile(path)
    faster = {"dispatch": {"op": 1e-6}}
    path.write_text(json.dumps({"base": "A100", **faster}))
    mine, base = load_profile(path), load_profile("A100")
    assert mine.dispatch.op == 1e-6
    assert mine.dispatch.collective == base.dispatch.collective
    assert mine.compute == base.compute


def test_profiles_are_for_their_devices():
    on = cluster(2)
    with pytest.raises(DistIRError, match="for device @A100, but cluster @c has @unit"):
        Hardware.of(on, [load_profile("A100")])
    with pytest.raises(DistIRError, match="both for device @unit"):
        Hardware.of(on, [profile(), profile()])
    with pytest.raises(DistIRError, match="names no profile"):
        load_profiles(["auto"], on)
    kinds = [
        KindOp(name, [i], memory=1, memory_bandwidth=1.0, peak_flops={"default": 1.0})
        for i, name in enumerate(("unit", "other"))
    ]
    both = ClusterOp("c", kinds, [LinkOp("level0", 2, bandwidth=1.0, latency=0.0)])
    with pytest.raises(DistIRError, match="no profile is for device @other"):
        Hardware.of(both, [profile()])


def test_curve_counts_tiles_and_rounds():
    curve = Curve(bandwidth=1.0, efficiency=0.5, tile=(16, 16), units=4, depth=8.0)

    def seconds(batch, m, n, k, peak=1.0):
        flops = 2.0 * batch * m * n * k
        return curve.seconds(flops, Product(batch, m, n, k), 0.0, peak, 1e300)

    # 4 tiles keep 4 units busy; each computes 16 x 16 x (32 + 8) products, twice as
    # slow as the peak, of which each unit has a quarter
    assert seconds(1, 32, 32, 32) == 2 * 4 * 16 * 16 * 40 / 0.5
    # a fifth tile takes another round, but sums split in 4 fill 5 rounds of a quarter
    assert seconds(5, 16, 16, 128) < 2 * seconds(4, 16, 16, 128)
    assert seconds(5, 16, 16, 128) >= 5 / 4 * 128 / 136 * seconds(4, 16, 16, 128)
    # one row takes a tile of 16
    assert seconds(1, 1, 64, 32) == seconds(1, 16, 64, 32)


def test_ops_take_what_their_curves_say():
    program = parse("""
      func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) -> tensor<2x4xf32> {
        %c = onnx.MatMul(%a, %b) : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
        %d = onnx.Relu(%c) : (tensor<2x4xf32>) -> tensor<2x4xf32>
        func.return %d : tensor<2x4xf32>
      }
    """)
    on = cluster(1, peak=2.0, bandwidth=8.0)
    plain = simulate(program, on.clone()).step_time_s
    assert plain == 48 / 2 + 2 * 32 / 8
    found = simulate(program, on.clone(), profiles=[profile()]).step_time_s
    assert found == 1 + 48 / (2 * 0.5) + 2 + 2 * 32 / (8 * 0.25)


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        ("grouped_product", ("1x64x1x32", "1x64x1", "2x32x48"), "1x64x1x48"),
        ("grouped_product", ("1x64x1x32", "1x64x1", "2x48x32"), "1x64x1x48"),
        ("grouped_product", ("2x64x1x32", "2x64x1", "2x32x48"), "2x64x1x48"),
        ("grouped_product_grad", ("1x64x1x32", "1x64x1", "1x64x1x48"), "2x32x48"),
    ],
)
def test_experts_multiply_the_rows_that_they_have(op, operands, result):
    """64 of the rows are taken; with two experts that is a product of 32 rows for each."""
    elements = ("f32", "i64", "f32")
    types = [f"tensor<{t}x{e}>" for t, e in zip(operands, elements, strict=True)]
    given = ", ".join(f"%{i}: {t}" for i, t in enumerate(types))
    transposed = "transposed, " if operands[2] == "2x48x32" else ""
    grouped = parse(f"""
      func.func @main({given}) -> tensor<{result}xf32> {{
        %y = train.{op} %0, %1, %2 {{{transposed}taken = 1 : i64}} : ({", ".join(types)}) -> tensor<{result}xf32>
        func.return %y : tensor<{result}xf32>
      }}
    """)
    batched = parse("""
      func.func @main(%a: tensor<2x32x32xf32>, %b: tensor<2x32x48xf32>) -> tensor<2x32x48xf32> {
        %c = onnx.MatMul(%a, %b) : (tensor<2x32x32xf32>, tensor<2x32x48xf32>) -> tensor<2x32x48xf32>
        func.return %c : tensor<2x32x48xf32>
      }
    """)

    def tiles(data):
        curve = data["compute"]["default"]["contraction"]
        curve.update(tile=[16, 16], units=4, depth=8, bandwidth=1.0)

    on = cluster(1, peak=1.0, bandwidth=1e12)
    times = [
        simulate(program, on.clone(), profiles=[profile(tiles)]).step_time_s
        for program in (grouped, batched)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-6)


def test_the_host_sets_the_pace_of_small_ops():
    program = parse("""
      func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %b = onnx.Relu(%a) : (tensor<4xf32>) -> tensor<4xf32>
        %c = onnx.Relu(%b) : (tensor<4xf32>) -> tensor<4xf32>
        func.return %c : tensor<4xf32>
      }
    """)
    on = cluster(1, bandwidth=8.0)
    device = 2 * (2 + 32 / (8 * 0.25))

    def seconds(issue):
        slow = profile(lambda d: d["dispatch"].update(op=issue))
        return simulate(program, on.clone(), profiles=[slow]).step_time_s

    assert seconds(device / 4) == device
    assert seconds(device) == 2 * device


def test_hosts_that_do_not_run_ahead():
    """No op takes less than its issue; collectives take that much more."""
    program = parse("""
      func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %b = onnx.Relu(%a) : (tensor<4xf32>) -> tensor<4xf32>
        %c = onnx.Add(%b, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %c : tensor<4xf32>
      }
    """)
    small, large = 2 + 32 / (8 * 0.25), 2 + 48 / (8 * 0.25)
    issue = (small + large) / 2

    def seconds(module, on, ahead, **dispatch):
        host = profile(lambda d: d["dispatch"].update(ahead=ahead, **dispatch))
        return simulate(module, on, profiles=[host]).step_time_s

    on = cluster(1, bandwidth=8.0)
    assert seconds(program, on.clone(), True, op=issue) == 2 * issue
    assert seconds(program, on.clone(), False, op=issue) == issue + large
    on = cluster(4, levels=((4, 2.0, 100.0),))
    plain = seconds(parse(REDUCED), on.clone(), False)
    assert seconds(parse(REDUCED), on.clone(), True, collective=5.0) == plain
    assert seconds(parse(REDUCED), on.clone(), False, collective=5.0) == plain + 5


def test_products_that_are_not_aligned():
    """Rows in memory that are no multiple of 8 are computed at a share of the speed."""
    curve = Curve(bandwidth=1.0, misaligned=0.25)

    def seconds(m, n, k, *rows):
        product = Product(1, m, n, k, rows)
        return curve.seconds(2.0 * m * n * k, product, 0.0, 1.0, 1e300)

    assert seconds(16, 17, 16) == 17 / 16 * 4 * seconds(16, 16, 16)
    assert seconds(16, 16, 17) == 17 / 16 * 4 * seconds(16, 16, 16)
    assert seconds(17, 16, 16) == 17 / 16 * seconds(16, 16, 16)
    # Read transposed, the first matrix has rows of 17.
    assert seconds(17, 16, 16, 17, 16, 16) == 17 / 16 * 4 * seconds(16, 16, 16)


def test_an_odd_vocabulary_is_slow_in_all_three_products():
    """Logits, the gradient of what they are computed of, and that of the table."""
    module = build_gpt(1, 64, heads=4, vocab=257, batch=2, seq=8)
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    products = [
        Work.of(op, None).product
        for op in module.walk()
        if op.name in ("onnx.Gemm", "onnx.MatMul")
    ]
    of_vocabulary = [p for p in products if 257 in (p.m, p.n, p.k)]
    assert [(p.m, p.n, p.k) for p in of_vocabulary] == [
        (16, 257, 64), (16, 64, 257), (257, 64, 16),
    ]  # fmt: skip
    assert all(257 in p.rows for p in of_vocabulary)
    others = [p for p in products if p not in of_vocabulary]
    assert others and not any(row % 8 for p in others for row in p.rows)


def test_a_kernel_waits_for_nothing_else():
    """An op joins the one before it only if its other operands are there by then."""
    text = """
      func.func @main(%a: tensor<4xf32>, %w: tensor<4x4xf32>) -> tensor<4xf32> {{
        %b = onnx.Relu(%a) : (tensor<4xf32>) -> tensor<4xf32>
        %c = onnx.MatMul(%a, %w) : (tensor<4xf32>, tensor<4x4xf32>) -> tensor<4xf32>
        %d = onnx.Mul(%b, {other}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %e = onnx.Add(%d, %c) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %e : tensor<4xf32>
      }}
    """
    fused = profile(lambda d: d.update(fusion=["elementwise"]))

    def seconds(other):
        module = parse(text.format(other=other))
        on = cluster(1, peak=1e300, bandwidth=1.0)
        return simulate(module, on, profiles=[fused]).step_time_s

    product = 1 + (16 + 64 + 16) * 2
    # relu, product and multiplication in one kernel each, or relu and multiplication in one;
    # the addition joins the multiplication either way
    assert seconds("%a") == 2 + (16 + 16) * 4 + product + (16 + 16) * 4
    assert seconds("%c") == 2 * 2 + (16 + 16) * 4 + product + (16 + 16 + 16 + 16) * 4


def test_a_constant_between_two_ops_of_a_kernel():
    """A mask that is made right before its use does not part an op from the one before."""
    constant = "%k = onnx.Constant() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>\n"
    mask = "%m = onnx.Softmax(%k) : (tensor<4xf32>) -> tensor<4xf32>\n"
    relu = "%b = onnx.Relu(%a) : (tensor<4xf32>) -> tensor<4xf32>\n"
    fused = profile(lambda d: d.update(fusion=["elementwise"]))

    def seconds(ops):
        text = f"""
          func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
            {ops}
            %c = onnx.Mul(%b, %m) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
            func.return %c : tensor<4xf32>
          }}"""
        on = cluster(1, peak=1e300, bandwidth=1.0)
        return simulate(parse(text), on, profiles=[fused]).step_time_s

    assert seconds(relu + constant + mask) == seconds(constant + mask + relu)
    of_input = mask.replace("%k", "%a")
    assert seconds(relu + of_input) > seconds(of_input + relu)


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        # product: 16 + 16 read, 16 written; bias: 16 + 8 and 16; then 16 and 16, twice
        ([], 1 + 48 * 2 + 3 * 2 + (40 + 32 + 32) * 4),
        (["bias"], 1 + 32 * 2 + (8 + 16) * 4 + 2 * 2 + (32 + 32) * 4),
        (["elementwise"], 1 + 48 * 2 + 2 + (24 + 0 + 16) * 4),
        (["bias", "elementwise"], 1 + 32 * 2 + (8 + 16) * 4 + 2 + (16 + 16) * 4),
    ],
)
def test_fusions(fusion, expected):
    program = parse("""
      func.func @main(%a: tensor<2x2xf32>, %b: tensor<2x2xf32>, %v: tensor<2xf32>)
          -> tensor<2x2xf32> {
        %c = onnx.MatMul(%a, %b) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
        %d = onnx.Add(%c, %v) : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
        %e = onnx.Gelu(%d) : (tensor<2x2xf32>) -> tensor<2x2xf32>
        %f = onnx.Relu(%e) : (tensor<2x2xf32>) -> tensor<2x2xf32>
        func.return %f : tensor<2x2xf32>
      }
    """)
    fused = profile(lambda d: d.update(fusion=fusion))
    on = cluster(1, peak=1e300, bandwidth=1.0)
    assert simulate(program, on, profiles=[fused]).step_time_s == expected


def test_flat_and_summarised_agree_with_a_profile():
    module = build_gpt(2, 64, 4, 128, 8, 16, "f16")
    DifferentiatePass(optimizer="adam").apply(Context(), module)
    first = module.body.block.first_op
    module.body.block.insert_op_before(load_cluster("dgx-a100"), first)
    DistributePass(d=2, t=2).apply(Context(), module)
    found = [simulate(module, flat=flat, profiles=["auto"]) for flat in (False, True)]
    assert found[0].step_time_s == pytest.approx(found[1].step_time_s, rel=1e-12)
    assert found[0].peak_memory_bytes == found[1].peak_memory_bytes
    assert found[0].step_time_s > simulate(module).step_time_s


def test_a_send_may_keep_its_sender_busy():
    module = build_gpt(2, 64, 4, 128, 8, 16, "f16")
    DifferentiatePass(optimizer="adam").apply(Context(), module)
    first = module.body.block.first_op
    module.body.block.insert_op_before(load_cluster("dgx-a100"), first)
    DistributePass(p=2, k=4).apply(Context(), module)
    free = load_profile("A100")
    links = {name: replace(link, occupies=True) for name, link in free.links.items()}
    busy = replace(free, links=links)
    found = [simulate(module, flat=flat, profiles=[busy]) for flat in (False, True)]
    assert found[0].step_time_s == pytest.approx(found[1].step_time_s, rel=1e-12)
    for result in found:
        assert result.step_time_s > simulate(module, profiles=[free]).step_time_s
        for spent in zip(
            result.compute_s,
            result.exposed_communication_s,
            result.waiting_s,
            strict=True,
        ):
            assert sum(spent) == pytest.approx(result.step_time_s, rel=1e-9)


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce"])
def test_nodes_that_do_not_share_what_comes_over_the_network(kind):
    two = ((4, 100.0, 0.0), (8, 1.0, 0.0))
    figures = {"bandwidth": 1.0, "overhead": 0.0, "latency": 0.0, "source": "made up"}

    def seconds(**more):
        links = {"level0": figures, "level1": {**figures, **more}}
        known = profile(lambda d: d.update(links=links))
        stages = topology(range(8), Hardware.of(cluster(8, levels=two), [known]))
        if kind == "all_gather":
            return all_gather_seconds(800.0, stages)
        return all_reduce_seconds(800.0, stages)

    each = 1 if kind == "all_gather" else 2
    # Shared, four devices of a node receive a quarter each, and pass it on; else each
    # receives seven eighths.
    assert seconds() <= each * (100 + 6 + 1e-9)
    assert seconds(shared=True) == seconds()
    assert seconds(shared=False) == pytest.approx(each * 700)


REDUCED = """
  device.mesh @m on @c <d = 4> [0 to 4]
  func.func @main(%x: tensor<8xi8, #dist.layout<@m, [{}], partial sum {d}>>)
      -> tensor<8xi8, #dist.layout<@m, [{}]>> {
    %y = collective.all_reduce %x over [d] :
      tensor<8xi8, #dist.layout<@m, [{}], partial sum {d}>> -> tensor<8xi8, #dist.layout<@m, [{}]>>
    func.return %y : tensor<8xi8, #dist.layout<@m, [{}]>>
  }
"""


def test_collectives_have_overheads():
    on = cluster(4, levels=((4, 2.0, 100.0),))
    seconds = simulate(parse(REDUCED), on, profiles=[profile()]).step_time_s
    # trees have fewer messages, 2 log2 4 instead of 2 (4 - 1), but send more bytes
    ring, tree = 6 * (1 + 2 / (2 * 0.5)), 4 * 1 + 2 * 8 / (2 * 0.5)
    assert seconds == 3 + min(ring, tree)


def test_links_of_an_unknown_kind_fall_back_by_figure():
    """The software's overhead stays; bandwidth and latency are the data sheet's."""

    def rename(data):
        data["links"] = {"other": data["links"]["level0"]}

    on = cluster(4, levels=((4, 2.0, 7.0),))
    found = simulate(parse(REDUCED), on, profiles=[profile(rename)])
    ring, tree = 6 * (7 + 2 / 2), 4 * 7 + 2 * 8 / 2
    assert found.step_time_s == 3 + min(ring, tree)
    assert found.unknown_links == ["@level0"]
    assert found.to_json()["unknown_links"] == ["@level0"]


def test_links_are_known_by_their_kind():
    named = cluster(4, levels=((4, 2.0, 100.0),))
    other = named.clone()
    (link,) = other.links
    link.sym_name, link.kind = StringAttr("cable"), StringAttr("level0")
    known, same = (
        simulate(parse(REDUCED), on, profiles=[profile()]) for on in (named, other)
    )
    assert same.step_time_s == known.step_time_s and not same.unknown_links
    link.kind = StringAttr("wire")
    found = simulate(parse(REDUCED), other, profiles=[profile()])
    assert found.unknown_links == ["@cable (kind wire)"]


@pytest.mark.parametrize(
    "kind", ["A100", "B200", "GB200", "H100", "H200", "H800", "MI300X", "V100"]
)
def test_described_clusters_have_links_that_profiles_know(kind: str):
    on = ClusterDescription("mine", kind, 2, 8, nic=25e9).build()
    choice = ProfileChoice.of((), on)
    hardware = Hardware.of(on, load_profiles(choice.names, on))
    assert hardware.has_profiles and not hardware.unknown_links


ALL_REDUCE = """
  device.mesh @m on @{name} <d = {n}> [0 to {n}]
  func.func @main(%x: tensor<{size}xi8, #dist.layout<@m, [{{}}], partial sum {{d}}>>)
      -> tensor<{size}xi8, #dist.layout<@m, [{{}}]>> {{
    %y = collective.all_reduce %x over [d] : tensor<{size}xi8, #dist.layout<@m, [{{}}], partial sum {{d}}>>
      -> tensor<{size}xi8, #dist.layout<@m, [{{}}]>>
    func.return %y : tensor<{size}xi8, #dist.layout<@m, [{{}}]>>
  }}
"""


@pytest.mark.parametrize(
    ("name", "n", "mebibytes", "bus_bandwidth", "tolerance"),
    [  # stas00/ml-engineering, network/README.md, August 2026
        ("dgx-b200", 8, 1, 36.06e9, 0.17),
        ("dgx-b200", 8, 16, 254.96e9, 0.15),
        ("dgx-b200", 8, 64, 400.60e9, 0.32),  # the farthest of the sizes
        ("dgx-b200", 8, 256, 646.11e9, 0.05),
        ("dgx-b200", 8, 4096, 740.64e9, 0.02),
        ("mi300x", 2, 4096, 47.671e9, 0.01),
        ("mi300x", 8, 4096, 312.912e9, 0.01),
    ],
)
def test_published_all_reduces(
    name: str, n: int, mebibytes: int, bus_bandwidth: float, tolerance: float
):
    on = load_cluster(name)
    size = mebibytes << 20
    text = ALL_REDUCE.format(name=on.sym_name.data, n=n, size=size)
    profiles = load_profiles(ProfileChoice.of((), on).names, on)
    seconds = simulate(parse(text), on, profiles=profiles).step_time_s
    measured = 2 * (n - 1) / n * size / bus_bandwidth
    assert seconds == pytest.approx(measured, rel=tolerance)


def copies_in_a_package(element: str, gradient: bool, rows: int) -> int:
    """Returns the bytes of copies of `rows` times 2^22 logits while a loss runs."""
    types = f"tensor<{rows}x{1 << 22}x{element}>, tensor<{rows}xi64>"
    op = f"%y = train.cross_entropy %x, %i : ({types}) -> tensor<f32>"
    if gradient:
        op = (
            f"%y = train.cross_entropy_grad %d, %x, %i : (tensor<f32>, {types}) -> "
            f"tensor<{rows}x{1 << 22}x{element}>"
        )
    result = op.rsplit("-> ", 1)[1]
    text = f"""
      func.func @main(%d: tensor<f32>, %x: {types.split(", ")[0]}, %i: tensor<{rows}xi64>)
          -> {result} {{
        {op}
        func.return %y : {result}
      }}"""
    measured, bare = (
        simulate(parse(text), cluster(1), profiles=profiles).peak_memory_bytes[0]
        for profiles in ([profile()], ())
    )
    return measured - bare


@pytest.mark.parametrize(
    ("element", "gradient", "rows", "each"),
    [
        ("bf16", False, 2, 8),  # the logits in f32, and their log-softmax
        ("bf16", False, 8, 8),
        ("bf16", True, 2, 4),  # the softmax in f32
        ("bf16", True, 8, 6),  # and the gradient of the part
        ("f32", False, 8, 4),
        ("f32", True, 2, 0),  # it is the result
        ("f32", True, 8, 4),
    ],
)
def test_packages_copy_a_part_of_the_logits_at_a_time(
    element: str, gradient: bool, rows: int, each: int
):
    assert losses.CHUNK == LOGITS_AT_ONCE
    part = min(rows << 22, LOGITS_AT_ONCE)
    assert copies_in_a_package(element, gradient, rows) == each * part


def test_built_in_profiles_say_what_they_were_fitted_to():
    for name in profile_names():
        path = FOLDER / "profiles" / f"{name}.json"
        own = json.loads(path.read_text("utf-8"))
        # not those of the base: it was fitted to other measurements
        assert own["fitted_to"] and own["compared_with"], name
