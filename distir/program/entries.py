"""
Programs with several entries, such as the prefill and decode of inference.

Each entry is a function whose attribute `dist.entry` is its name. Arguments of the same
name are one value for all entries, for example parameters, and the cache that prefill
fills and decode reads.

Passes and tools work on programs with one entry. A program with several entries is
therefore split (`one_entry`), rewritten, and joined again (`joined`).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import ENTRY_POINT
from distir.errors import DistIRError, did_you_mean, listed
from distir.program.functions import (
    ENTRY,
    callees_first,
    entry_function,
    entry_points,
    functions,
    public_functions,
)
from distir.program.naming import free_name
from distir.program.view import Argument, arguments_of

SHARED_ROLES = ("parameter", "constant", "cache")
"""The roles of arguments that all entries of a program share."""


def one_entry(module: ModuleOp, name: str) -> ModuleOp:
    """
    Returns a copy of a program with several entries that has only the entry `name`, as
    `@main`, and the functions that this entry calls. In a module without entries
    (`dist.entry`), `name` is a public function. This function becomes `@main`, and all
    functions of the module stay. Raises DistIRError if no entry or function is named
    `name`.
    """
    known = entry_points(module)
    public = [function.sym_name.data for function in public_functions(module)]
    if not known and name in public:
        return _with_main(module, name)
    if name not in known:
        if not known:
            raise DistIRError(
                f"the module has no public function {name!r}; {did_you_mean(name, public)}"
                f"it has {listed(public) or 'none'}"
            )
        raise DistIRError(
            f"the program has no entry {name!r}; {did_you_mean(name, known)}it has "
            f"{' and '.join(known)}"
        )
    reached = set(callees_first(module, [known[name]]))
    part = ModuleOp(
        [
            op.clone()
            for op in module.body.block.ops
            if not isinstance(op, FuncOp) or op in reached
        ],
        dict(module.attributes),
    )
    own = known[name].sym_name.data
    taken = {f.sym_name.data for f in reached}
    if ENTRY in taken - {own}:
        _rename(part, {ENTRY: free_name(taken, ENTRY)})
    _rename(part, {own: ENTRY})
    del functions(part)[ENTRY].attributes[ENTRY_POINT]
    return part


def _with_main(module: ModuleOp, name: str) -> ModuleOp:
    """
    Returns a copy of a module in which the function `name` is renamed to `@main`. If
    another function is already named `@main`, that function gets a new name.
    """
    part = module.clone()
    taken = set(functions(part))
    names = {name: ENTRY}
    if ENTRY in taken - {name}:
        names[ENTRY] = free_name(taken, ENTRY)
    _rename(part, names)
    return part


def chosen_entry(module: ModuleOp, name: str | None) -> ModuleOp:
    """
    Returns a copy with only the entry `name` of a program with several entries, or the
    program itself if `name` is None. Raises DistIRError if there is no such entry, or
    if `name` is None and the program has several entries.
    """
    if name is not None:
        return one_entry(module, name)
    if entry_points(module):
        entry_function(module)  # says how to choose
    return module


def joined(programs: Mapping[str, ModuleOp]) -> ModuleOp:
    """
    Joins programs with one entry into one program with several entries. `programs` maps
    the names of the entries to the programs, whose modules are consumed.

    Equal declarations other than functions, such as meshes, occur once in the result.
    Raises DistIRError if the programs declare the same name differently, or if shared
    arguments (`SHARED_ROLES`) have different types or roles.
    """
    _check_shared(programs)
    attributes: dict[str, Attribute] = {}
    declared: dict[str, str] = {}
    made = ModuleOp([])
    taken = set(programs)
    for entry, module in programs.items():
        names: dict[str, str] = {entry_function(module).sym_name.data: entry}
        for op in module.body.block.ops:
            if isinstance(op, FuncOp) and op.sym_name.data not in names:
                names[op.sym_name.data] = free_name(taken, op.sym_name.data)
            if isinstance(op, FuncOp):
                taken.add(names[op.sym_name.data])
        entry_function(module).attributes[ENTRY_POINT] = ENTRY_POINT.attr(entry)
        _rename(module, names)
        for op in list(module.body.block.ops):
            if not isinstance(op, FuncOp):
                name, text = _symbol(op.properties, op.attributes), str(op)
                if declared.get(name, text) != text:
                    raise DistIRError(
                        f"the entries of a program have different declarations @{name}; "
                        f"distribute them over the same devices"
                    )
                if name in declared:
                    continue
                declared[name] = text
            op.detach()
            made.body.block.add_op(op)
        for name, attribute in module.attributes.items():
            attributes.setdefault(name, attribute)
    made.attributes.update(attributes)
    return made


def shared_arguments(program: ModuleOp) -> dict[str, Argument]:
    """
    Returns the arguments of a program with one entry whose roles allow other entries to
    share them, by name.
    """
    return {
        argument.name: argument
        for argument in arguments_of(entry_function(program))
        if argument.role in SHARED_ROLES
    }


def _check_shared(programs: Mapping[str, ModuleOp]) -> None:
    known: dict[str, tuple[str, Argument]] = {}
    for entry, program in programs.items():
        for name, argument in shared_arguments(program).items():
            other, first = known.setdefault(name, (entry, argument))
            if first.type != argument.type or first.role != argument.role:
                raise DistIRError(
                    f"argument {name!r} is {argument.role} {argument.type} in {entry}, but "
                    f"{first.role} {first.type} in {other}; the entries of a "
                    f"program share it, in one layout"
                )


def _symbol(*attributes: Mapping[str, Attribute]) -> str:
    """Returns the symbol that a declaration defines, or "" if it defines none."""
    for own in attributes:
        symbol = own.get("sym_name")
        if isinstance(symbol, StringAttr):
            return symbol.data
    return ""


def _rename(module: ModuleOp, names: Mapping[str, str]) -> None:
    """Renames functions and the calls of them; `names` maps old names to new ones."""
    for op in module.walk():
        if isinstance(op, FuncOp) and op.sym_name.data in names:
            op.sym_name = StringAttr(names[op.sym_name.data])
        elif isinstance(op, CallOp) and op.callee.string_value() in names:
            op.callee = SymbolRefAttr(names[op.callee.string_value()])
