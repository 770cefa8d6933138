"""A sample of the zoo in `make test`; `make test-all` and `make zoo` visit all of it."""

from __future__ import annotations

import pytest
from zoo.columns import COLUMNS, visit
from zoo.families import REFUSALS, families
from zoo.shares import Shares, shares_over
from zoo.table import table

SAMPLE: dict[str, tuple[str, ...]] = {
    "vae": COLUMNS,
    "dlrm": ("step",),
    "shufflenet": ("step p2 k2",),
    "coatnet": ("step d2 t2",),
}
"""Small families, and columns of them that take other ways through the code."""

CASES = [
    pytest.param(
        name,
        SAMPLE.get(name, COLUMNS),
        marks=() if name in SAMPLE else pytest.mark.slow,
        id=name,
    )
    for name in families()
]


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_it_is_what_pytorch_computes(name: str, columns: tuple[str, ...]) -> None:
    found: dict[str, str] = {}
    visit(families()[name], columns, found.__setitem__)
    shares = found.pop("shares", None)
    assert (shares is None) == ("d2 t2" not in columns)
    unexplained = {
        column: outcome
        for column, outcome in found.items()
        if outcome != "equal"
        and not any(r.explains(name, column, outcome) for r in REFUSALS)
    }
    assert found.keys() == set(columns) and not unexplained


def test_the_zoo_is_large_enough() -> None:
    sources = [family.source for family in families().values()]
    assert sources.count("transformers") >= 45
    assert sum(s in ("torchvision-like", "timm-like") for s in sources) >= 8
    assert sum(s in ("own", "diffusers-like") for s in sources) >= 5


def test_what_is_split_is_counted() -> None:
    from support.programs import parse

    half = """
    device.cluster @cpu {
      device.kind @core on [0 to 2] {memory = 4000000000 : i64, memory_bandwidth = 1.0e+10 : f64, peak_flops = {f32 = 8.0e+10 : f64}}
    }
    device.mesh @mesh on @cpu <t = 2> [0 to 2]
    func.func @main(%w: tensor<4x6xf32, #dist.layout<@mesh, [{}, {t}]>> {dist.role = "parameter", dist.name = "w"},
                    %v: tensor<4x2xf32, #dist.layout<@mesh, [{}, {}]>> {dist.role = "parameter", dist.name = "v"},
                    %x: tensor<8x4xf32, #dist.layout<@mesh, [{}, {}]>> {dist.role = "input", dist.name = "x"})
        -> (tensor<8x6xf32, #dist.layout<@mesh, [{}, {t}]>>, tensor<8x2xf32, #dist.layout<@mesh, [{}, {}]>>) {
      %a = onnx.MatMul(%x, %w) : (tensor<8x4xf32, #dist.layout<@mesh, [{}, {}]>>, tensor<4x6xf32, #dist.layout<@mesh, [{}, {t}]>>) -> tensor<8x6xf32, #dist.layout<@mesh, [{}, {t}]>>
      %b = onnx.MatMul(%x, %v) : (tensor<8x4xf32, #dist.layout<@mesh, [{}, {}]>>, tensor<4x2xf32, #dist.layout<@mesh, [{}, {}]>>) -> tensor<8x2xf32, #dist.layout<@mesh, [{}, {}]>>
      func.return %a, %b : tensor<8x6xf32, #dist.layout<@mesh, [{}, {t}]>>, tensor<8x2xf32, #dist.layout<@mesh, [{}, {}]>>
    }
    """
    module = parse(half)
    assert shares_over(module, "t") == Shares(0.75, 0.75)
    assert shares_over(module, "d") == Shares(0.0, 0.0)


def test_the_table_says_what_is_refused_and_why() -> None:
    outcomes = {name: dict.fromkeys(COLUMNS, "equal") for name in ("clip", "vae")}
    outcomes["vae"] |= {"shares": "0.9742 1.0000", "step": "DiffersError: the loss"}
    outcomes["clip"]["p2 k2"] = "pipeline: %a needs what %b makes of the whole batch"
    text = table(families(), outcomes)
    rows = [line for line in text.splitlines() if line.startswith(("| clip", "| vae"))]
    assert rows[0].startswith("| clip | transformers | = | = | (1) | = |")
    assert rows[1].endswith("| (2) | = | = | = | 97% | 100% |")
    assert "1. The contrastive loss compares" in text
    assert "2. `vae`, step: DiffersError: the loss" in text
    assert text.startswith("2 families; 0 are equal")
