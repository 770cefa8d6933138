"""Small programs of elementwise ops."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp

from support.programs import parse

_LINE = re.compile(r"(\w+) = (?:(\w+)\((.*?)\)|([\d.]+))")


def elementwise(*lines: str) -> ModuleOp:
    """
    Returns a program of `x` and `y`, of 4 x 6 elements each, that computes these lines,
    each like `a = Add(x, y)` or, for a number, `c = 0.5`; the last one is its result.
    """
    types = {"x": "tensor<4x6xf32>", "y": "tensor<4x6xf32>"}
    text, name = "", "x"
    for line in lines:
        match = _LINE.fullmatch(line)
        assert match is not None, line
        name, op, operands, number = match.groups()
        if number is not None:
            types[name] = "tensor<f32>"
            value = f"{{value = dense<{number}> : tensor<f32>}}"
            text += f"%{name} = onnx.Constant() {value} : () -> tensor<f32>\n"
            continue
        types[name] = "tensor<4x6xf32>"
        names = [operand.strip() for operand in operands.split(",")]
        values = ", ".join(f"%{n}" for n in names)
        given = ", ".join(types[n] for n in names)
        text += f"%{name} = onnx.{op}({values}) : ({given}) -> {types[name]}\n"
    return parse(f"""
        func.func @main(
          %x: tensor<4x6xf32> {{dist.role = "input", dist.name = "x"}},
          %y: tensor<4x6xf32> {{dist.role = "input", dist.name = "y"}}
        ) -> tensor<4x6xf32> {{
          {text}
          func.return %{name} : tensor<4x6xf32>
        }}""")
