"""LLaMA of any size, without weights."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.differentiate import DifferentiatePass
from support.programs import parse


def llama_step(
    layers: int,
    batch: int,
    seq: int,
    width: int = 4096,
    heads: int = 32,
    groups: int = 8,
    hidden: int = 14336,
    vocab: int = 128256,
) -> ModuleOp:
    """
    Returns a training step with Adam, by default in the sizes of LLaMA-8B: grouped queries,
    RMS norm, SwiGLU and rotary positions; the layers are calls of one function.
    """
    module = parse(_forward(**locals()))
    DifferentiatePass(optimizer="adam").apply(Context(), module)
    return module


def _type(*shape: int, element: str = "bf16") -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def _forward(
    layers: int,
    batch: int,
    seq: int,
    width: int,
    heads: int,
    groups: int,
    hidden: int,
    vocab: int,
) -> str:
    """Returns the forward pass as text."""
    size = width // heads
    x = _type(batch, seq, width)
    weights = {
        "norm1": _type(width),
        "q": _type(width, width),
        "k": _type(width, groups * size),
        "v": _type(width, groups * size),
        "o": _type(width, width),
        "norm2": _type(width),
        "gate": _type(width, hidden),
        "up": _type(width, hidden),
        "down": _type(hidden, width),
    }
    types = {
        **weights,
        "x": x,
        "cos": _type(batch, seq, size // 2),
        "sin": _type(batch, seq, size // 2),
    }
    lines: list[str] = []

    def op(
        name: str, operator: str, operands: str, type_: str, given: str = ""
    ) -> None:
        known = [o.strip() for o in operands.split(",")]
        types[name] = type_
        lines.append(
            f"%{name} = onnx.{operator}({', '.join('%' + o for o in known)}) "
            f"{{{given}}} : ({', '.join(types[o] for o in known)}) -> {type_}"
        )

    def attended(name: str, count: int) -> None:
        op(f"{name}1", "MatMul", f"n1, {name}", _type(batch, seq, count * size))

    norm = "axis = -1 : i64, epsilon = 1.0e-5 : f32"
    op("n1", "RMSNormalization", "x, norm1", x, norm)
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        attended(name, count)
    for name, count in (("q", heads), ("k", groups)):
        given = f"num_heads = {count} : i64"
        op(
            f"{name}2",
            "RotaryEmbedding",
            f"{name}1, cos, sin",
            types[f"{name}1"],
            given,
        )
    given = (
        f"is_causal = 1 : i64, q_num_heads = {heads} : i64, "
        f"kv_num_heads = {groups} : i64"
    )
    op("a", "Attention", "q2, k2, v1", x, given)
    op("a1", "MatMul", "a, o", x)
    op("h", "Add", "x, a1", x)
    op("n2", "RMSNormalization", "h, norm2", x, norm)
    inner = _type(batch, seq, hidden)
    op("g1", "MatMul", "n2, gate", inner)
    op("g2", "Swish", "g1", inner)
    op("u1", "MatMul", "n2, up", inner)
    op("m", "Mul", "g2, u1", inner)
    op("m1", "MatMul", "m, down", x)
    op("y", "Add", "h, m1", x)
    layer, names = list(lines), ["x", "cos", "sin", *weights]
    signature = [types[n] for n in names]
    formal = ", ".join(f"%{n}: {t}" for n, t in zip(names, signature, strict=True))

    lines.clear()
    arguments = [f'%ids: {_type(batch, seq, element="i64")} {{dist.role = "input"}}']
    types["ids"] = _type(batch, seq, element="i64")

    def argument(name: str, type_: str, role: str = "parameter") -> None:
        types[name] = type_
        given = f'dist.role = "{role}", dist.name = "{name}"'
        arguments.append(f"%{name}: {type_} {{{given}}}")

    argument("cos", types["cos"], "input")
    argument("sin", types["sin"], "input")
    argument("embedding", _type(vocab, width))
    op("h0", "Gather", "embedding, ids", x)
    for i in range(layers):
        given = [f"{name}_{i}" for name in weights]
        for name, type_ in zip(given, weights.values(), strict=True):
            argument(name, type_)
        operands = ", ".join(f"%{n}" for n in (f"h{i}", "cos", "sin", *given))
        lines.append(
            f'%h{i + 1} = func.call @layer({operands}) {{scope = "layers.{i}"}} : '
            f"({', '.join(signature)}) -> {x}"
        )
    types[f"h{layers}"] = x
    argument("norm", _type(width))
    argument("head", _type(width, vocab))
    op("n", "RMSNormalization", f"h{layers}, norm", x, norm)
    logits = _type(batch, seq, vocab)
    op("logits", "MatMul", "n, head", logits)
    newline = "\n  "
    return f"""
func.func private @layer({formal}) -> {x} {{
  {newline.join(layer)}
  func.return %y : {x}
}}
func.func @main({", ".join(arguments)}) -> ({logits} {{dist.name = "logits"}}) {{
  {newline.join(lines)}
  func.return %logits : {logits}
}}
"""
