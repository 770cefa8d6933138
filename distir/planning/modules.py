"""
The modules of a program's source model. They are found by the scopes (module paths) of
the program's ops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.tensors import rank_of
from distir.program import (
    argument_names,
    argument_roles,
    arguments_of,
    entry_function,
    functions,
    scope_of,
)
from distir.transforms.repeats.naming import specialise


@dataclass(frozen=True)
class ParameterUse:
    """
    An operand of an op that is an argument of the entry function, perhaps transposed.
    `index` is the index of the argument. `dims` gives, for each dimension of the
    operand, the matching dimension of the argument.
    """

    index: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ScopedOp:
    """
    One run of an op.

    - `scope`: the path of the module that the op belongs to, with numbers in place of
      every `*`;
    - `op`: the op; `entered`: the op itself if it is in the entry function, else the
      call in the entry function through which it runs;
    - `uses`: the operands that are arguments of the entry function, by operand index;
    - `path`: the calls that lead to the op, starting in the entry function.
    """

    scope: str
    op: Operation
    entered: Operation
    uses: Mapping[int, ParameterUse]
    path: tuple[CallOp, ...] = ()


class ProgramModules:
    """
    The modules of a program, with the ops and parameters that belong to them. Raises
    DistIRError for a program without an entry function.
    """

    def __init__(self, module: ModuleOp):
        self.entry = entry_function(module)
        self.names = argument_names(self.entry)
        self.roles = argument_roles(self.entry)
        self._functions = functions(module)
        arguments = self.entry.body.block.args
        known: dict[SSAValue, ParameterUse] = {
            a: ParameterUse(a.index, tuple(range(rank_of(a.type)))) for a in arguments
        }
        self.ops = [
            scoped
            for op in self.entry.body.block.ops
            for scoped in self._walk(op, (), "", known)
        ]
        self.on_inputs = self._on_inputs()
        self.scopes: dict[str, None] = {}
        for scoped in self.ops:
            parts = scoped.scope.split(".")
            for end in range(1, len(parts) + 1):
                self.scopes[".".join(parts[:end])] = None
        self.scopes.pop("", None)

    def _on_inputs(self) -> set[Operation]:
        """
        Returns the ops of the entry function that depend on inputs of the program.
        """
        values: set[SSAValue] = {
            argument.value
            for argument in arguments_of(self.entry)
            if argument.role not in ("parameter", "constant", "state")
        }
        found: set[Operation] = set()
        for op in self.entry.body.block.ops:
            if any(value in values for value in op.operands):
                values.update(op.results)
                found.add(op)
        return found

    def _walk(
        self,
        op: Operation,
        path: tuple[CallOp, ...],
        call_scope: str,
        known: dict[SSAValue, ParameterUse],
    ) -> Iterator[ScopedOp]:
        """
        Yields each run of `op`, or of the ops in the functions that it calls, in
        program order. `path` holds the calls that lead to `op`, and `call_scope` is the
        module path of the last call in `path`. `known` maps a value that is an argument
        of the entry function, perhaps transposed, to this argument.
        """
        own = scope_of(op)
        scope = specialise(own, call_scope) if call_scope else own
        uses = {i: known[v] for i, v in enumerate(op.operands) if v in known}
        if isinstance(op, CallOp):
            callee = self._functions[op.callee.string_value()]
            inner: dict[SSAValue, ParameterUse] = {
                callee.body.block.args[i]: use for i, use in uses.items()
            }
            for called in callee.body.block.ops:
                yield from self._walk(called, (*path, op), scope, inner)
        else:
            yield ScopedOp(scope, op, path[0] if path else op, uses, path)
            same = _same_argument(op, uses)
            if same is not None:
                known[op.results[0]] = same

    def find(self, pattern: str | re.Pattern[str], inside: Sequence[str]) -> list[str]:
        """
        Returns the modules below one of the modules `inside` whose path, relative to
        that module, matches `pattern`. The module "" is the whole model. A regular
        expression must match the whole relative path. The modules come in program
        order.
        """
        found: dict[str, None] = {}
        for root in inside:
            start = f"{root}." if root else ""
            for scope in self.scopes:
                path = scope[len(start) :]
                if not scope.startswith(start) or not path:
                    continue
                if (
                    matches(pattern, path)
                    if isinstance(pattern, str)
                    else pattern.fullmatch(path)
                ):
                    found[scope] = None
        return list(found)

    def nearest(self, pattern: str, inside: Sequence[str]) -> list[str]:
        """
        Returns up to four paths of modules that are spelled like `pattern`, for an
        error message. Only modules below the first module of `inside` are considered.
        Paths are relative to this module.
        """
        start = f"{inside[0]}." if inside and inside[0] else ""
        known = {s[len(start) :] for s in self.scopes if s.startswith(start)}
        general = {re.sub(r"(?<![^.])\d+(?![^.])", "*", scope) for scope in known}
        return get_close_matches(pattern, sorted(general | known), 4, 0.5)

    def within(self, scope: str) -> list[ScopedOp]:
        """
        Returns, in program order, all runs of ops that belong to the module `scope` or
        to a module inside it.
        """
        return [
            scoped
            for scoped in self.ops
            if scoped.scope == scope or scoped.scope.startswith(f"{scope}.")
        ]

    def parameters(self, scope: str) -> dict[int, str]:
        """
        Returns the parameters that the module `scope` uses: for each argument index,
        the parameter's name within the module. This name is the part of the full name
        after the module's path. If the parameter belongs to another module, the name is
        the last part of the full name.
        """
        found: dict[int, str] = {}
        for scoped in self.within(scope):
            for use in scoped.uses.values():
                if self.roles[use.index] == "parameter":
                    name = self.names[use.index]
                    start = f"{scope}."
                    is_own = name.startswith(start)
                    local = name[len(start) :] if is_own else name.rpartition(".")[2]
                    found[use.index] = local
        return found

    def parameters_called(self, pattern: str, scope: str) -> list[int]:
        """
        Returns the argument indices of the parameters that the module `scope` uses.
        Only parameters are returned that have a name within the module that matches
        `pattern`.
        """
        own = self.parameters(scope)
        return [i for i, name in own.items() if matches(pattern, name)]


def _same_argument(
    op: Operation, uses: Mapping[int, ParameterUse]
) -> ParameterUse | None:
    """
    Returns the argument whose value the result of `op` has, if `op` only permutes the
    argument's dimensions or changes its element type. Returns None for any other op.
    `uses` holds the operands of `op` that are arguments.
    """
    if 0 not in uses or len(op.operands) != 1:
        return None
    use = uses[0]
    if op.name in ("onnx.Identity", "onnx.Cast", "dist.constrain"):
        return use
    if op.name != "onnx.Transpose":
        return None
    order = range(len(use.dims))[::-1]
    attr = op.properties.get("perm") or op.attributes.get("perm")
    perm = (
        [a.value.data for a in attr.data if isinstance(a, IntegerAttr)]
        if isinstance(attr, ArrayAttr)
        else list(order)
    )
    return ParameterUse(use.index, tuple(use.dims[i] for i in perm))


@lru_cache(maxsize=1 << 12)
def _part(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def matches(pattern: str, path: str) -> bool:
    """
    Whether the path of a module matches a pattern: `*` stands for any text in one part
    of a path, `**` for any number of parts.
    """
    return _parts_match(tuple(pattern.split(".")), tuple(path.split(".")))


def _parts_match(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if not pattern or not path:
        return pattern == path or pattern == ("**",)
    if pattern[0] == "**":
        return _parts_match(pattern[1:], path) or _parts_match(pattern, path[1:])
    same = _part(pattern[0]).match(path[0]) is not None
    return same and _parts_match(pattern[1:], path[1:])
