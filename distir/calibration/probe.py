"""
Micro-benchmarks: programs that measure one op each. The programs are lowered like any
program, so that the timed code is the code of generated programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from xdsl.dialects.builtin import ModuleOp

from distir.text import ProgramParser, new_context


def tensor(*shape: int, element: str = "f32") -> str:
    """Returns a tensor type as text."""
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


@dataclass(frozen=True)
class Probe:
    """
    A program whose last op is measured.

    - `name`: the name of the measurement: the op's name, or `A of B` for an op A whose
      operand comes from an op B, if that makes a difference;
    - `arguments`: the types of arguments by SSA name; `body`: the ops, one per line;
      `results`: the types of results by SSA name;
    - `parameters`: the arguments that are parameters or states, which a program does not
      compute just before (see `TimingSettings.in_turn`);
    - `below`: the exclusive upper bound of integer arguments; `prologue`: the lines
      that declare the meshes of layouts.
    """

    name: str
    arguments: Mapping[str, str]
    body: Sequence[str]
    results: Mapping[str, str]
    below: int = 2
    prologue: Sequence[str] = ()
    parameters: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Returns the program as text."""
        role = ' {dist.role = "parameter"}'
        arguments = ", ".join(
            f"%{n}: {t}{role if n in self.parameters else ''}"
            for n, t in self.arguments.items()
        )
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


@dataclass(frozen=True)
class CommunicationProbe(Probe):
    """
    A probe that measures communication of the kind `kind`, with a buffer of `size`
    bytes. A `silent` probe belongs to a probe with communication: it has the same
    computations, without the communication.
    """

    _: KW_ONLY
    kind: str
    size: int
    silent: bool = False


class Prober:
    """Parses and verifies the programs of probes."""

    def __init__(self) -> None:
        self._context = new_context()

    def module(self, probe: Probe) -> ModuleOp:
        """Returns the program of a probe."""
        name = f"probe of {probe.name}"
        module = ProgramParser(self._context, probe.text, name).parse_module()
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
    parameters: Sequence[int] = (),
) -> Probe:
    """
    Returns a probe of the ONNX operator `name`. `operands` and `results` are the texts
    of types. `constants` gives the values of constant operands by index, as `dense`
    attributes. `parameters` are the indices of operands that are parameters. `filed` is
    the name of the probe, by default the op's name. Integer arguments are below
    `below`.
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
        parameters=[f"x{i}" for i in parameters],
    )


def written(
    name: str,
    types: Mapping[str, str],
    *lines: str,
    below: int = 2,
    parameters: Sequence[str] = (),
) -> Probe:
    """
    Returns a probe of the ops in `lines`, which are written without types; `types`
    gives the type of every value. Values that no op computes are arguments, and
    `parameters` names the arguments that are parameters. Computed values that no op
    uses are results. Integer arguments are below `below`.
    """
    body: list[str] = []
    uses: list[str] = []
    makes: list[str] = []
    for line in lines:
        left, _, right = line.partition(" = ")
        made, used = (re.findall(r"%(\w+)", side) for side in (left, right))
        after = ", ".join(types[n] for n in made)
        before = ", ".join(types[n] for n in used)
        body.append(
            f"{line} : ({before}) -> {after if len(made) == 1 else f'({after})'}"
        )
        uses += used
        makes += made
    arguments = {n: t for n, t in types.items() if n not in makes}
    results = {n: types[n] for n in makes if n not in uses}
    return Probe(name, arguments, body, results, below, parameters=parameters)
