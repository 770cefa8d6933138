"""
The places of ops in the source code that a program came from, as MLIR's `loc(...)`
gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from xdsl.dialects.builtin import (
    ArrayAttr,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    LocationAttr,
    ModuleOp,
    NameLoc,
    UnknownLoc,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE

_DISTIR = f"{Path(__file__).parents[1]}/"
_PACKAGES = frozenset(["site-packages", "dist-packages"])


def line_location(location: Attribute | None) -> FileLineColLoc | None:
    """
    Returns the file and line of a location, or None if the line is unknown. A location
    may have several frames, innermost first. The first frame in a file of the user, not
    in an installed package, is returned; if all are in packages, the first frame.
    """
    frames = _frames(location)
    first = next(frames, None)
    if first is None or not _is_installed(first):
        return first
    return next((frame for frame in frames if not _is_installed(frame)), first)


def _frames(location: Attribute | None) -> Iterator[FileLineColLoc]:
    """
    Yields the lines of a location; lines of a callee come before lines of its caller.
    """
    match location:
        case FileLineColLoc() if location.line.data:
            yield location
        case NameLoc():
            yield from _frames(location.location)
        case CallSiteLoc():
            yield from _frames(location.callee)
            yield from _frames(location.caller)
        case FusedLoc() if isinstance(location.locations, ArrayAttr):
            for part in location.locations.data:
                yield from _frames(part)
        case _:
            pass


def _is_installed(frame: FileLineColLoc) -> bool:
    """Whether a line is in a file of an installed package, or of DistIR itself."""
    file = frame.filename.data
    return file.startswith(_DISTIR) or not _PACKAGES.isdisjoint(PurePath(file).parts)


def line_of(location: Attribute | None) -> str:
    """Returns `file:line` of `line_location`, or "" if the line is unknown."""
    found = line_location(location)
    return "" if found is None else f"{found.filename.data}:{found.line.data}"


def has_locations(module: ModuleOp) -> bool:
    """Whether any op of a module has a known location."""
    return any(is_known(op.location) for op in module.walk())


def is_known(location: LocationAttr) -> bool:
    """Whether a location holds any information."""
    return type(location) is not UnknownLoc


@dataclass(frozen=True)
class KnownLocations:
    """
    The locations of a module's functions, of their returns, and of their arguments,
    recorded before a rewrite that makes new ones. Arguments are found by name. Ops are
    found by their scope (module path) and the name of their first result. If several
    ops share both but differ in their locations, their location counts as unknown.
    """

    functions: dict[str, LocationAttr]
    returns: dict[str, LocationAttr]
    arguments: dict[tuple[str, str | None], LocationAttr]
    ops: dict[tuple[str, str], LocationAttr]

    @staticmethod
    def of(module: ModuleOp) -> KnownLocations | None:
        """Returns the locations of `module`, or None if no op in it has one."""
        if not has_locations(module):
            return None
        found = KnownLocations({}, {}, {}, {})
        for op in module.body.block.ops:
            # Of several blocks no pass makes anything anew.
            if isinstance(op, FuncOp) and len(op.body.blocks) == 1:
                name = op.sym_name.data
                found.functions[name] = op.location
                if op.body.block.last_op is not None:
                    found.returns[name] = op.body.block.last_op.location
                for argument in op.args:
                    found.arguments[name, argument.name_hint] = argument.location
                for inner in op.body.block.ops:
                    if (key := _label(inner)) is not None:
                        first = found.ops.setdefault(key, inner.location)
                        if first != inner.location:
                            found.ops[key] = UnknownLoc()
        return found

    def complete(self, module: ModuleOp) -> None:
        """
        Gives a location to each op of `module` that has none. Functions, returns and
        arguments get their recorded location. A new function gets the location of its
        first op. Any other op gets the location of the first of these that has one: the
        recorded op with the same name and scope, an op that computes an operand, an op
        that uses a result, the function.
        """
        for function in module.body.block.ops:
            if not isinstance(function, FuncOp) or len(function.body.blocks) != 1:
                continue
            name, block = function.sym_name.data, function.body.block
            self._take(function, self.functions.get(name))
            for argument in block.args:
                known = self.arguments.get((name, argument.name_hint))
                if known is not None and not is_known(argument.location):
                    argument.location = known
            if block.last_op is not None:
                self._take(block.last_op, self.returns.get(name))
            for op in block.ops:
                if not is_known(op.location) and (key := _label(op)) is not None:
                    self._take(op, self.ops.get(key))
            for op in block.ops:
                self._take(op, _first(_location(v) for v in op.operands))
            for op in reversed(list(block.ops)):
                users = (use.operation for r in op.results for use in r.uses)
                self._take(op, _first(user.location for user in users))
            self._take(function, _first(op.location for op in block.ops))
            for op in block.ops:
                self._take(op, function.location)

    @staticmethod
    def _take(op: Operation, location: LocationAttr | None) -> None:
        if location is not None and is_known(location) and not is_known(op.location):
            op.location = location


def _label(op: Operation) -> tuple[str, str] | None:
    """
    Returns the module path (scope) of an op and the name of its first result. Returns
    None if the op has no result with a name.
    """
    hint = op.results[0].name_hint if op.results else None
    return None if hint is None else (SCOPE.of(op.attributes) or "", hint)


def _location(value: SSAValue) -> LocationAttr:
    """
    Returns the location of the op that computes `value`, or an unknown location for an
    argument.
    """
    return UnknownLoc() if isinstance(value.owner, Block) else value.owner.location


def _first(locations: Iterable[LocationAttr]) -> LocationAttr | None:
    return next(filter(is_known, locations), None)
