"""
Matrix products and attention on one A100 PCIe, kernel by kernel: SimuMax's measurements
(github.com/MooreThreads/SimuMax, configs/system/a100_pcie.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from measured.clusters import GPUS, cluster
from measured.programs import seconds
from measured.rows import Row

GPU, PROFILE = "a100_pcie_80gb", "A100-pcie"

_PRODUCT = """
func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %c = onnx.MatMul(%a, %b) : ({a}, {b}) -> {c}
  func.return %c : {c}
}}
"""

_ATTENTION = """
func.func @main(%q: {q}, %k: {k}, %v: {v}) -> {o} {{
  %o = onnx.Attention(%q, %k, %v) {{is_causal = 1 : i64}} : ({q}, {k}, {v}) -> {o}
  func.return %o : {o}
}}
"""

_GRADIENT = """
func.func @main(%dy: {o}, %y: {o}, %s: {s}, %q: {q}, %k: {k}, %v: {v}) -> ({q}, {k}, {v}) {{
  %dq, %dk, %dv = "train.attention_grad"(%dy, %y, %s, %q, %k, %v)
    {{is_causal}} : ({o}, {o}, {s}, {q}, {k}, {v}) -> ({q}, {k}, {v})
  func.return %dq, %dk, %dv : {q}, {k}, {v}
}}
"""


def _tensor(*sizes: int) -> str:
    return f"tensor<{'x'.join(map(str, sizes))}xbf16>"


@dataclass(frozen=True)
class Kernel:
    """Predicts one row."""

    text: str

    def __call__(self) -> float:
        return seconds(self.text, cluster(GPU, 1), PROFILE)


def _text(r: dict[str, Any]) -> str:
    if r["op"] in ("matmul", "group_matmul"):
        batch, m, n, k = (
            (r["b"], r["m"], r["n"], r["k"])
            if r["op"] == "matmul"
            else (r["ng"], r["M"], r["N"], r["K"])
        )
        outer = (batch,) if batch > 1 else ()
        return _PRODUCT.format(
            a=_tensor(*outer, m, k), b=_tensor(*outer, k, n), c=_tensor(*outer, m, n)
        )
    b, s, heads, shared = (
        r["batch"], r["seq_len"], r["head_num"], r["kv_head_num"],
    )  # fmt: skip
    form = _ATTENTION if r["op"] == "sdp_fwd" else _GRADIENT
    return form.format(
        q=_tensor(b, heads, s, r["qk_head_dim"]),
        k=_tensor(b, shared, s, r["qk_head_dim"]),
        v=_tensor(b, shared, s, r["v_head_dim"]),
        o=_tensor(b, heads, s, r["v_head_dim"]),
        s=f"tensor<{b}x{heads}x{s}xf32>",
    )


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `kernel_efficiency_*.json` that are of this GPU."""
    shown = ("op", "b", "m", "k", "n", "layout", "ng", "M", "N", "K", "stage")
    shown += ("head_num", "kv_head_num", "qk_head_dim")
    return [
        Row(
            " ".join(str(r[key]) for key in shown if key in r),
            r["time_us"] / 1e6,
            r["flops"] / GPUS[GPU].peak,
            Kernel(_text(r)),
        )
        for r in data["records"]
        if r["gpu"] == GPU
    ]
