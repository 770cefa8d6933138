"""
Public functions that the program does not call, such as an `@eval` beside `@main`: DistIR
leaves them alone.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp

from distir.dialects.dist import layout_of
from distir.program import entry_function, functions, reachable_functions, unique_name


def other_functions(module: ModuleOp) -> list[FuncOp]:
    """
    Returns the public functions that the entry function does not reach, such as an `@eval`
    beside `@main`, and all that they call: functions of others, which DistIR leaves alone.
    """
    known = functions(module)
    entry = entry_function(module)
    public = [
        function
        for function in known.values()
        if function.sym_visibility != StringAttr("private") and function is not entry
    ]
    if not public:
        return []
    own = set(reachable_functions(module))
    pending = [function for function in public if function not in own]
    found: dict[FuncOp, None] = {}
    while pending:
        function = pending.pop()
        if function in found:
            continue
        found[function] = None
        for op in function.walk():
            if isinstance(op, CallOp) and op.callee.string_value() in known:
                pending.append(known[op.callee.string_value()])
    return list(found)


def holds_layouts(function: FuncOp) -> bool:
    """Whether a value of a function has a layout."""
    types = [*function.function_type.inputs.data, *function.function_type.outputs.data]
    types += [result.type for op in function.walk() for result in op.results]
    return any(layout_of(type_) is not None for type_ in types)


def left_alone(module: ModuleOp) -> set[FuncOp]:
    """
    Returns the functions of others that are not distributed, and are no part of the program.
    """
    others = other_functions(module)
    if not others:
        return set()
    own = set(reachable_functions(module))
    return {f for f in others if f not in own and not holds_layouts(f)}


def separate_others(module: ModuleOp) -> list[FuncOp]:
    """
    Gives the functions of others copies of the functions that the entry function reaches
    too, so that the program can change without them. Returns the copies.
    """
    own = set(reachable_functions(module))
    changed: list[FuncOp] = []
    copies: list[FuncOp] = []
    names: dict[str, str] = {}
    for function in other_functions(module):
        if function in own:
            name = function.sym_name.data
            names[name] = unique_name(module, name)
            function = function.clone()
            function.sym_name = StringAttr(names[name])
            module.body.block.add_op(function)
            copies.append(function)
        changed.append(function)
    for function in changed:
        for op in function.walk():
            if isinstance(op, CallOp) and op.callee.string_value() in names:
                op.callee = SymbolRefAttr(names[op.callee.string_value()])
    return copies


def erase_unreachable(module: ModuleOp) -> None:
    """
    Removes the private functions that neither the entry function nor another public one
    reaches.
    """
    kept = {*reachable_functions(module), *other_functions(module)}
    for function in functions(module).values():
        if function not in kept:
            function.detach()
