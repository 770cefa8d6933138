"""
Published times with products in blocks (MXFP8 and NVFP4), beside what is predicted:

    python bench/block_floats.py [TEXT]

predicts the steps with TEXT in their name, all by default, and prints the section. The published figures are in
`bench/data/block_floats.json`, with their sources.

The profiles know of the first table how fast products of blocks are beside those of 8-bit floats with one scale, and of the second what its row in NVFP4 showed. The steps have the
models' published sizes, an optimizer split over data-parallel devices, sequence parallelism, gradients in 32 bits, and the head in 16 bits. 405B on GB200 ran with eight chunks on a
rank, and is predicted with four, as 126 layers do not fill 128 stages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from experts import cluster_of
from measured.programs import seconds
from report import cpu_seconds, table
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from distir.dialects import get_all_dialects
from distir.exports.runs.prediction import Prediction, Predictor
from distir.exports.systems.settings import RunSettings
from distir.hardware import load_cluster
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass

DATA = json.loads(
    (Path(__file__).parent / "data" / "block_floats.json").read_text("utf-8")
)
_PROFILES = {"dgx-b200": "B200-megatron", "gb200-nvl72": "GB200-megatron"}
_FUSED = "recompute:onnx.Split+onnx.Swish+onnx.Mul"
"""What fused kernels of SwiGLU do not keep for the backward, without recomputation."""


_PRODUCT = """
func.func @main(%x: {x} {{dist.role = "input", dist.name = "x"}}, %w: {w} {{dist.role = "parameter", dist.name = "w"}}) -> {y} {{
  %y = onnx.MatMul(%x, %w) : ({x}, {w}) -> {y}
  func.return %y : {y}
}}
"""


def product_seconds(m: int, k: int, n: int, recipe: str) -> tuple[float, float]:
    """
    Returns the predicted seconds of one product on a B200, alone and with the
    conversion of both factors. `recipe` is `bf16` or a recipe of `--float8`.
    """
    shapes = {"x": (m, k), "w": (k, n), "y": (m, n)}
    types = {name: f"tensor<{a}x{b}xbf16>" for name, (a, b) in shapes.items()}
    context = Context()
    for dialect in (Builtin, Func):
        context.load_dialect(dialect)
    for name, dialect in get_all_dialects().items():
        context.register_dialect(name, dialect)
    module = Parser(context, _PRODUCT.format(**types)).parse_module()
    if recipe != "bf16":
        Float8Pass(recipe, ("none",)).apply(context, module)
        ExpandFloat8Pass().apply(context, module)
    cluster = load_cluster("dgx-b200", None)
    (product,) = (op for op in module.walk() if op.name in _PRODUCTS)
    operands = ", ".join(f"%{i}" for i in range(len(product.operands)))
    arguments = ", ".join(f"%{i}: {v.type}" for i, v in enumerate(product.operands))
    own = ", ".join(f"{n} = {a}" for n, a in product.properties.items())
    given = ", ".join(str(v.type) for v in product.operands)
    result = product.results[0].type
    alone = (
        f"func.func @main({arguments}) -> {result} {{\n"
        f'  %y = "{product.name}"({operands}) <{{{own}}}> : ({given}) -> {result}\n'
        f"  func.return %y : {result}\n}}"
    )
    first, second = (
        seconds(text, cluster, "B200-megatron") for text in (alone, str(module))
    )
    return first, second


_PRODUCTS = ("onnx.MatMul", "train.float8_product", "train.block_product")


def layer() -> list[list[str]]:
    """Returns the rows of the table of the products of a layer."""
    known, rows = DATA["layer"], list[list[str]]()
    m = known["rows"]
    for recipe, measured in known["milliseconds"].items():
        found = [0.0, 0.0]
        for k, n in known["matrices"]:
            for shape in ((m, k, n), (m, n, k), (k, m, n)):
                for i, one in enumerate(product_seconds(*shape, recipe)):
                    found[i] += 1000 * one
        cells = [recipe]
        for part, value in zip(("kernels", "all"), found, strict=True):
            error = f"{value / measured[part] - 1:+.1%}".replace("%", " %")
            cells += [f"{measured[part]:.2f} ms", f"{value:.2f} ms", error]
        rows.append(cells)
    return rows


def settings_of(row: dict[str, Any]) -> RunSettings:
    """Returns the settings of a published step."""
    chunks = row.get("chunks", 0)
    own = RunSettings(
        **DATA["models"][row["model"]], seq=8192,
        mlp="swiglu", norm="rms", position="rotary", tied=False, bias=False,
        dtype="bf16", gradients_f32=True, zero=1, checkpoint=_FUSED, overlap="dp,params",
        float8=row["float8"], chunks=chunks, schedule="interleaved-1f1b" if chunks else "",
        sequence_parallel=row.get("t", 1) > 1,
        **{n: row[n] for n in ("devices", "batch", "micro_batch", "t", "p", "c") if n in row},
    )  # fmt: skip
    return own.completed()


def predicted(row: dict[str, Any]) -> Prediction:
    """Returns the prediction of a published step."""
    cluster = cluster_of(row["cluster"], row["devices"])
    settings = settings_of(row)
    return Predictor(cluster, [_PROFILES[row["cluster"]]]).predict(
        settings, settings.vocab
    )


def steps(text: str) -> list[list[str]]:
    """Returns the rows of the table of steps with `text` in their names."""
    rows: list[list[str]] = []
    for row in DATA["steps"]["rows"]:
        name = f"{row['model']} {row['float8']} {row['cluster']}"
        if text not in name:
            continue
        start, s = cpu_seconds(), settings_of(row)
        found = predicted(row)
        seconds = row["batch"] * s.seq / (row["tokens_per_s"] * row["devices"])
        rows.append(
            [
                row["model"],
                row["float8"],
                f"{row['devices']} {_PROFILES[row['cluster']].split('-')[0]}",
                f"{s.d}/{s.t}/{s.p}/{s.c}/{s.k}",
                f"{seconds:.3g} s",
                f"{found.seconds:.3g} s",
                f"{found.seconds / seconds - 1:+.1%}".replace("%", " %"),
                f"{found.peak / 1e9:.3g} of {found.memory / 1e9:.3g} GB",
            ]
        )
        print(rows[-1], f"{cpu_seconds() - start:.0f} CPU s", flush=True)
    return rows


def section(text: str = "") -> str:
    """Returns the section of `docs/benchmarks.md`, with the steps that have `text` in their names."""
    doc = (__doc__ or "").split("\n\n")[-1].strip()
    parts = ["## Products in blocks", doc]
    if not text:
        head = [
            "format",
            "products",
            "predicted",
            "error",
            "with conversions",
            "predicted",
            "error",
        ]
        parts += [
            "**Twelve products of a layer on a B300, predicted for a B200**",
            table(head, layer()),
        ]
    head = [
        "model",
        "format",
        "devices",
        "D/T/P/C/K",
        "published",
        "predicted",
        "error",
        "memory",
    ]
    return "\n\n".join([*parts, "**Steps**", table(head, steps(text))])


if __name__ == "__main__":
    print(section(*sys.argv[1:]))
