"""
Training steps of layers of experts, as in GShard, where dense products and experts
alternate.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.differentiate import DifferentiatePass
from support.cost_programs import parse


def experts_layer(
    groups: int, tokens: int, width: int, experts: int, slots: int, hidden: int
) -> ModuleOp:
    """
    Returns a program of experts with a mask that says which tokens go where: `x`, `mask`,
    and the experts' two products `w1` and `w2`, with a ReLU between them.
    """
    x = f"tensor<{groups}x{tokens}x{width}xf32>"
    mask = f"tensor<{groups}x{tokens}x{experts}x{slots}xf32>"
    sent = f"tensor<{experts}x{groups}x{slots}x{width}xf32>"
    inside = f"tensor<{experts}x{groups}x{slots}x{hidden}xf32>"
    w1 = f"tensor<{experts}x{width}x{hidden}xf32>"
    w2 = f"tensor<{experts}x{hidden}x{width}xf32>"
    return parse(f"""
func.func @main(
    %x: {x} {{dist.role = "input", dist.name = "x"}},
    %mask: {mask} {{dist.role = "input", dist.name = "mask"}},
    %w1: {w1} {{dist.role = "parameter", dist.name = "w1"}},
    %w2: {w2} {{dist.role = "parameter", dist.name = "w2"}}) -> {x} {{
  %sent = onnx.Einsum(%x, %mask) {{equation = "gsm,gsec->egcm"}} : ({x}, {mask}) -> {sent}
  %h = onnx.Einsum(%sent, %w1) {{equation = "egcm,emh->egch"}} : ({sent}, {w1}) -> {inside}
  %a = onnx.Relu(%h) : ({inside}) -> {inside}
  %y = onnx.Einsum(%a, %w2) {{equation = "egch,ehm->egcm"}} : ({inside}, {w2}) -> {sent}
  %out = onnx.Einsum(%y, %mask) {{equation = "egcm,gsec->gsm"}} : ({sent}, {mask}) -> {x}
  func.return %out : {x}
}}""")


def moe_step(
    layers: int, *, groups: int, tokens: int, width: int, experts: int, slots: int
) -> ModuleOp:
    """
    Returns a training step with SGD on `groups` of `tokens` tokens of a width; each layer
    has a dense product, then `experts` with `slots` tokens of each group, to which a given
    mask sends them.
    """
    x = f"tensor<{groups}x{tokens}x{width}xf32>"
    mask = f"tensor<{groups}x{tokens}x{experts}x{slots}xf32>"
    sent = f"tensor<{experts}x{groups}x{slots}x{width}xf32>"
    hidden = f"tensor<{experts}x{groups}x{slots}x{4 * width}xf32>"
    dense = f"tensor<{width}x{width}xf32>"
    into = f"tensor<{experts}x{width}x{4 * width}xf32>"
    back = f"tensor<{experts}x{4 * width}x{width}xf32>"
    arguments = [f'%x0: {x} {{dist.role = "input", dist.name = "x"}}']
    body: list[str] = []
    for n in range(layers):
        arguments += [
            f'%{name}{n}: {type_} {{dist.role = "{role}", dist.name = "layer.{n}.{name}"}}'
            for name, type_, role in (
                ("mask", mask, "input"),
                ("dense", dense, "parameter"),
                ("into", into, "parameter"),
                ("back", back, "parameter"),
            )
        ]
        body.append(f"""
  %d{n} = onnx.MatMul(%x{n}, %dense{n}) : ({x}, {dense}) -> {x}
  %r{n} = onnx.Relu(%d{n}) : ({x}) -> {x}
  %s{n} = onnx.Einsum(%r{n}, %mask{n}) {{equation = "gsm,gsec->egcm"}}
    : ({x}, {mask}) -> {sent}
  %h{n} = onnx.Einsum(%s{n}, %into{n}) {{equation = "egcm,emh->egch"}}
    : ({sent}, {into}) -> {hidden}
  %a{n} = onnx.Relu(%h{n}) : ({hidden}) -> {hidden}
  %b{n} = onnx.Einsum(%a{n}, %back{n}) {{equation = "egch,ehm->egcm"}}
    : ({hidden}, {back}) -> {sent}
  %y{n} = onnx.Einsum(%b{n}, %mask{n}) {{equation = "egcm,gsec->gsm"}}
    : ({sent}, {mask}) -> {x}
  %x{n + 1} = onnx.Add(%x{n}, %y{n}) : ({x}, {x}) -> {x}""")
    module = parse(
        f"func.func @main({', '.join(arguments)}) -> {x} {{{''.join(body)}\n"
        f"  func.return %x{layers} : {x}\n}}"
    )
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    return module
