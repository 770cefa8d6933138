"""
A micro-benchmark: a program of one op, lowered like any other, so that what is timed is
what generated programs run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.universe import Universe


def tensor(*shape: int, element: str = "f32") -> str:
    """A tensor type as text."""
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


@dataclass(frozen=True)
class Probe:
    """
    A program whose last op is the one to measure.

    - `name`: what the measurement is filed under: an op's name, or `A of B` for an A whose
      operand comes from a B, where that makes a difference;
    - `arguments`: types by SSA name; `body`: the ops, one a line; `results`: SSA names and
      types of what is returned;
    - `below`: integer arguments are less than that.
    """

    name: str
    arguments: Mapping[str, str]
    body: Sequence[str]
    results: Mapping[str, str]
    below: int = 2
    prologue: Sequence[str] = field(default=())

    @property
    def text(self) -> str:
        """The program as text."""
        arguments = ", ".join(f"%{n}: {t}" for n, t in self.arguments.items())
        types = ", ".join(self.results.values())
        values = ", ".join(f"%{n}" for n in self.results)
        lines = [
            *self.prologue,
            f"func.func @main({arguments}) -> ({types}) {{",
            *(f"  {line}" for line in self.body),
            f"  func.return {values} : {types}",
            "}",
        ]
        return "\n".join(lines)

    def module(self) -> ModuleOp:
        """The program."""
        context = Context()
        for name, factory in Universe.get_multiverse().all_dialects.items():
            context.register_dialect(name, factory)
        module = Parser(context, self.text, f"probe of {self.name}").parse_module()
        module.verify()
        return module


def onnx(
    name: str,
    operands: Sequence[str],
    results: Sequence[str],
    *,
    attributes: str = "",
    constants: Mapping[int, str] | None = None,
    filed: str = "",
    below: int = 2,
) -> Probe:
    """
    A probe of one operator of ONNX: `operands` and `results` are types, `constants` the
    operands that are constants, as `dense` attributes.
    """
    constants = constants or {}
    body = [
        f"%c{i} = onnx.Constant() {{value = {value}}} : () -> {operands[i]}"
        for i, value in constants.items()
    ]
    names = [f"c{i}" if i in constants else f"x{i}" for i in range(len(operands))]
    outputs = [f"y{i}" for i in range(len(results))]
    used = ", ".join("%" + n for n in names)
    types = f"({', '.join(operands)}) -> "
    types += results[0] if len(results) == 1 else f"({', '.join(results)})"
    attached = f" {{{attributes}}}" if attributes else ""
    shown = ", ".join("%" + n for n in outputs)
    body.append(f"{shown} = onnx.{name}({used}){attached} : {types}")
    return Probe(
        filed or f"onnx.{name}",
        {f"x{i}": t for i, t in enumerate(operands) if i not in constants},
        body,
        dict(zip(outputs, results, strict=True)),
        below,
    )
