"""The Python class for the program of one rank: functions become methods."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.collective import CollectiveOp, CoordinateOp, bucket_of
from distir.dialects.dist import COMPILED, NAME
from distir.dialects.onnx_values import element_type_of_dtype, onnx_element_type
from distir.errors import DistIRError
from distir.lowering.buckets import written_bucket
from distir.lowering.emitter import (
    Call,
    emitter_for,
    known_constant,
    literal,
    torch_dtype,
)
from distir.lowering.helper_modules import helper_modules
from distir.lowering.identifiers import Names, comment, sanitized
from distir.program import (
    argument_attributes,
    describe,
    functions,
    reachable_functions,
    scope_of,
    text_attribute,
)
from distir.transforms.projection import MESH

_LISTED_ELEMENTS = 64
"""Constants with more elements than this are written as base64 text."""


@dataclass
class ClassSource:
    """
    - `body`: the class without its `class` line, indented by four spaces; the entry
      function is its method `main`.
    - `helpers`: the helper modules that it uses.
    - `numbers`: the integers (peers) that differ between ranks that share the class.
    - `groups`: per mesh the tuples of axes whose process groups it uses.
    """

    body: str
    helpers: frozenset[str]
    numbers: tuple[int, ...]
    groups: frozenset[tuple[str, tuple[str, ...]]]


@dataclass
class _ClassWriter:
    """Collects what the methods of one class need."""

    module: ModuleOp
    devices: Sequence[int]
    attributes: Names = field(
        default_factory=lambda: Names(("numbers", "arguments", "results"))
    )
    methods: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    meshes: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    constants: dict[object, str] = field(default_factory=lambda: dict[object, str]())
    setup: list[str] = field(default_factory=lambda: list[str]())
    helpers: set[str] = field(default_factory=lambda: set[str]())
    numbers: list[int] = field(default_factory=lambda: list[int]())
    groups: set[tuple[str, tuple[str, ...]]] = field(
        default_factory=lambda: set[tuple[str, tuple[str, ...]]]()
    )
    callers: dict[str, CallOp] = field(default_factory=lambda: dict[str, CallOp]())

    def hint(self, value: SSAValue) -> str:
        """
        What to call a value: its own name, or else that of what it is in the function
        which computes it, at last the op that does.
        """
        # The argument of a function that was entered by a call is that call's operand.
        entered: list[CallOp] = []
        while not value.name_hint:
            owner = value.owner
            if isinstance(owner, CallOp):
                body = functions(self.module)[owner.callee.string_value()].body.block
                assert isinstance(value, OpResult) and body.last_op is not None
                entered.append(owner)
                value = body.last_op.operands[value.index]
            elif isinstance(owner, Operation):
                return sanitized(owner.name.rpartition(".")[2]).lower()
            else:
                assert isinstance(value, BlockArgument)
                function = owner.parent_op()
                assert isinstance(function, FuncOp)
                known = self.callers.get(function.sym_name.data)
                caller = entered.pop() if entered else known
                if caller is None:
                    return "x"
                value = caller.operands[value.index]
        return value.name_hint

    def mesh(self, op: Operation) -> tuple[str, str]:
        """The symbol of the mesh of a collective, and the attribute that holds it."""
        symbol = op.attributes.get(MESH)
        if not isinstance(symbol, SymbolRefAttr):
            raise DistIRError(
                f"{describe(op)} does not name its mesh; lower the distributed program, "
                f"or the output of `project`"
            )
        name = symbol.string_value()
        if name not in self.meshes:
            self.meshes[name] = self.attributes.fresh(name, "mesh")
        return name, f"self.{self.meshes[name]}"

    def constant(self, array: npt.NDArray[Any], hint: str | None) -> str:
        """The attribute that holds a constant tensor, made in `__init__`."""
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.attributes.fresh(hint, "constant")
            self.constants[key] = f"self.{name}"
            self.setup.append(f"self.{name} = {self._tensor(array)}")
        return self.constants[key]

    def _tensor(self, array: npt.NDArray[Any]) -> str:
        if array.dtype.kind in "OUS":
            raise DistIRError("constant strings have no torch lowering")
        element = element_type_of_dtype(array.dtype)
        dtype = torch_dtype(onnx_element_type(element), "a constant")
        shape = tuple(array.shape)
        if array.dtype.kind in "biuf" and array.dtype.name != "bfloat16":
            flat = array.reshape(-1)
            if array.size and flat.tobytes() == flat[:1].tobytes() * flat.size:
                return f"torch.full({shape!r}, {literal(flat[:1])}, dtype={dtype})"
            if 0 < array.size <= _LISTED_ELEMENTS and bool(np.isfinite(flat).all()):
                return f"torch.tensor({array.tolist()!r}, dtype={dtype})"
        self.helpers.add("tensors")
        text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return f"tensors.from_base64({text!r}, {dtype}, {shape!r})"


@dataclass
class _Method:
    """Writes one function; the `ValueNames` of its ops."""

    writer: _ClassWriter
    function: FuncOp
    variables: dict[SSAValue, str] = field(
        default_factory=lambda: dict[SSAValue, str]()
    )
    names: Names = field(default_factory=lambda: Names(_MODULES))
    lines: list[str] = field(default_factory=lambda: list[str]())

    # ValueNames

    def name(self, value: SSAValue) -> str:
        known = known_constant(value)
        if known is not None:
            return self.writer.constant(known, value.name_hint)
        return self.variables[value]

    def helper(self, module: str) -> str:
        self.writer.helpers.add(module)
        return module

    def group(self, op: Operation) -> str:
        assert isinstance(op, CollectiveOp | CoordinateOp)
        mesh, attribute = self.writer.mesh(op)
        axes = tuple(a.data for a in op.axes.data)
        self.writer.groups.add((mesh, axes))
        return f"{attribute}.group({', '.join(repr(a) for a in axes)})"

    def number(self, value: int) -> str:
        number = self.writer.devices.index(value)
        if number not in self.writer.numbers:
            self.writer.numbers.append(number)
        return f"self.numbers[{self.writer.numbers.index(number)}]"

    def method(self, symbol: str) -> str:
        return f"self.{self.writer.methods[symbol]}"

    # Text

    def text(self) -> str:
        block = self.function.body.block
        for argument, name in zip(
            block.args, argument_attributes(self.function), strict=True
        ):
            hint = text_attribute(name, NAME) or self.writer.hint(argument)
            self.variables[argument] = self.names.fresh(hint, "x")
        parameters = [self.variables[a] for a in block.args]
        last_use = {value: op for op in block.ops for value in op.operands}
        scope = ""
        for op in block.ops:
            if scope_of(op) not in ("", scope):
                scope = scope_of(op)
                self.lines.append(f"# {comment(scope)}")
            self._op(op)
            dead = [
                self.variables[v]
                for v in dict.fromkeys((*op.operands, *op.results))
                if v in self.variables
                and v not in block.args  # the caller holds them
                and last_use.get(v, op) is op
            ]
            if dead and not isinstance(op, ReturnOp):
                self.lines += _listed("del ", dead)
        name = self.writer.methods[self.function.sym_name.data]
        header = _listed(f"def {name}", ["self", *parameters], ":", brackets=True)
        if text_attribute(self.function.attributes, COMPILED) == "inductor":
            header = ["@torch.compile(dynamic=False)", *header]
        return _indented([*header, *("    " + line for line in self.lines)])

    def _op(self, op: Operation) -> None:
        if known_constant(op.results[0] if op.results else None) is not None:
            return  # written where it is used
        if isinstance(op, ReturnOp):
            self.lines += _listed("return ", [self.name(v) for v in op.operands])
            return
        if isinstance(op, CallOp):
            operands = [self.name(v) for v in op.operands]
            method = self.method(op.callee.string_value())
            written = _listed(method, operands, brackets=True)
            self._assign(op.results, written)
            return
        if isinstance(op, CollectiveOp) and op.is_joined:
            return  # written with the first one of the bucket
        if isinstance(op, CollectiveOp) and len(bucket := bucket_of(op)) > 1:
            written = written_bucket([Call(o, self) for o in bucket])
            self._assign([o.result for o in bucket], [written])
            return
        written = emitter_for(op)(Call(op, self))
        results = [self._result(r) for r in op.results]
        if isinstance(written, str):
            target = f"{', '.join(results)} = " if results else ""
            self.lines.append(target + written)
        else:
            for result, line in zip(results, written, strict=True):
                self.lines.append(f"{result} = {line}")

    def _assign(self, values: Sequence[SSAValue], written: Sequence[str]) -> None:
        """What gives several values, which may be none, on lines of its own."""
        lines = list(written)
        if results := [self._result(value) for value in values]:
            *first, last = _listed("", results, " = ")
            lines = [*first, last + lines[0], *lines[1:]]
        self.lines += lines

    def _result(self, value: SSAValue) -> str:
        self.variables[value] = self.names.fresh(self.writer.hint(value), "x")
        return self.variables[value]


_MODULES = ("torch", "F", *sorted(helper_modules()))
"""What a method's variables must not hide."""


_WIDTH = 80


def _listed(
    start: str, items: Sequence[str], end: str = "", *, brackets: bool = False
) -> list[str]:
    """A list in one line or, if that gets too long, in several, in brackets."""
    text = ", ".join(items)
    line = f"{start}({text}){end}" if brackets else f"{start}{text}{end}"
    if len(line) <= _WIDTH or not items:
        return [line.rstrip()] if not end else [line]
    rows = wrap(text + ",", _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return [f"{start}(", *("    " + row for row in rows), f"){end}"]


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def class_source(module: ModuleOp, devices: Sequence[int]) -> ClassSource:
    """
    The class for a per-rank (or sequential) program; process i of the run is device
    `devices[i]`. Raises DistIRError for what has no torch lowering.
    """
    writer = _ClassWriter(module, devices)
    *called, entry = reachable_functions(module)
    for function in (entry, *called):
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                writer.callers.setdefault(op.callee.string_value(), op)
        name = function.sym_name.data
        hint = "main" if function is entry else name
        writer.methods[name] = writer.attributes.fresh(hint, "function")
    methods = [_Method(writer, function).text() for function in (entry, *called)]
    setup = [f"self.{a} = meshes[{m!r}]" for m, a in writer.meshes.items()]
    if writer.numbers:
        setup.append("self.numbers = numbers")
    setup += writer.setup
    header = ["def __init__(self, meshes, numbers):"]
    init = _indented([*header, *("    " + line for line in setup or ["pass"])])
    return ClassSource(
        "\n".join([init, *methods]),
        frozenset(writer.helpers),
        tuple(writer.numbers),
        frozenset(writer.groups),
    )
