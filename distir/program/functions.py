"""
The functions of a module: the entry function, calls, and the number of ops that a run
executes.

A program of DistIR is straight-line code: each function has one block, and calls are
not recursive. DistIR does not change public functions outside of the program, such as
an `@eval` beside `@main`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from math import inf

from xdsl.dialects.builtin import (
    ModuleOp,
    ShapedType,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, Region, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import ENTRY_POINT
from distir.errors import DistIRError
from distir.program.naming import describe, free_name

ENTRY = "main"


MAX_CALL_DEPTH = 100
"""
The largest depth of nested calls. Passes and interpreters follow calls by recursion.
"""


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Maps the name of each function of a module to the function."""
    return {
        op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)
    }


def entry_points(module: ModuleOp) -> dict[str, FuncOp]:
    """
    Returns the entries of a program with several entries, such as `prefill` and
    `decode`, by the text of their attribute `dist.entry`. The result is empty if no
    function has this attribute. Raises DistIRError if two functions have the same text.
    """
    found: dict[str, FuncOp] = {}
    for function in functions(module).values():
        name = ENTRY_POINT.of(function.attributes)
        if name is not None and found.setdefault(name, function) is not function:
            raise DistIRError(
                f"@{found[name].sym_name.data} and @{function.sym_name.data} are both the "
                f'entry "{name}" ({ENTRY_POINT}); give each its own'
            )
    return found


def check_calls(module: ModuleOp) -> None:
    """
    Raises DistIRError if the functions that the program reaches are not straight-line
    code (`reachable_functions`). A program with several entries reaches the functions
    of all its entries. Checks nothing if the module does not determine its entry
    function, because a user may then choose any public function.
    """
    roots = list(entry_points(module).values())
    if not roots and (ENTRY in functions(module) or len(public_functions(module)) < 2):
        roots = [entry_function(module)]
    callees_first(module, roots, MAX_CALL_DEPTH)


def entry_function(module: ModuleOp) -> FuncOp:
    """
    Returns the function `@main`, or the only public function of the module. Raises
    DistIRError if there is no such function, if the function does not have exactly one
    block, or if the program has several entries (`distir.program.entries`).
    """
    found = functions(module)
    several = entry_points(module)
    if several:
        names = " and ".join(several)
        raise DistIRError(
            f"the program has the entries {names}; choose one, with --entry "
            f"{next(reversed(several))} or the pass "
            f"choose-entry{{entry={next(reversed(several))}}}"
        )
    if ENTRY in found:
        entry = found[ENTRY]
    elif len(own := public_functions(module)) == 1:
        [entry] = own
    else:
        raise DistIRError(
            f"the module has {len(found)} functions and none is called @{ENTRY}; "
            f"name the program's entry function @{ENTRY}, or choose it with --entry NAME "
            f"or the pass choose-entry{{entry=NAME}}"
        )
    _check_straight(entry)
    return entry


def public_functions(module: ModuleOp) -> list[FuncOp]:
    """
    Returns the functions that are not private: code outside of the module may call
    them.
    """
    return [f for f in functions(module).values() if not _is_private(f)]


def _is_private(function: FuncOp) -> bool:
    visibility = function.sym_visibility
    return visibility is not None and visibility.data == "private"


def reachable_functions(module: ModuleOp) -> list[FuncOp]:
    """
    Returns the functions that the entry function reaches, callees first, and the entry
    function last. Raises DistIRError if they are not straight-line code: if a function
    does not have exactly one block, or calls are recursive or nested too deeply.
    """
    return callees_first(module, [entry_function(module)], MAX_CALL_DEPTH)


def callees_first(
    module: ModuleOp, roots: Iterable[FuncOp], depth: float = inf
) -> list[FuncOp]:
    """
    Returns `roots` and the functions that they reach, each after the functions that it
    calls. Raises DistIRError if a function does not have exactly one block, or if calls
    are recursive or nested more than `depth` deep.
    """
    known = functions(module)
    done: dict[str, FuncOp] = {}
    for root in roots:
        if root.sym_name.data not in done:
            _add_callees_first(root, known, done, depth)
    return list(done.values())


def _add_callees_first(
    root: FuncOp, known: Mapping[str, FuncOp], done: dict[str, FuncOp], depth: float
) -> None:
    path: list[tuple[FuncOp, Iterator[CallOp]]] = []
    pending: FuncOp | None = root
    while pending is not None or path:
        if pending is not None:
            path.append((pending, _calls(pending)))
            if len(path) > depth:
                raise DistIRError(
                    f"calls nest more than {depth} deep at "
                    f"@{pending.sym_name.data}; run inline-calls first"
                )
        function, calls = path[-1]
        call, pending = next(calls, None), None
        if call is None:
            done[function.sym_name.data] = function
            path.pop()
            continue
        name = call.callee.string_value()
        if name not in known:
            raise DistIRError(f"{describe(call)} calls @{name}, which is not there")
        if any(caller is known[name] for caller, _ in path):
            circle = " -> ".join(f"@{f.sym_name.data}" for f, _ in path)
            raise DistIRError(
                f"the functions call each other in a circle ({circle} -> @{name}); a "
                f"program of DistIR is straight-line code, so break the circle"
            )
        if name not in done:
            pending = known[name]


def _check_straight(function: FuncOp) -> None:
    blocks = function.body.blocks
    if len(blocks) != 1:
        last = blocks[0].last_op if blocks else None
        branch = f", as of {describe(last)}" if last and last.successors else ""
        raise DistIRError(
            f"function @{function.sym_name.data} has {len(blocks)} blocks{branch}; a "
            f"program of DistIR is straight-line code, so define it with one"
        )


def _calls(function: FuncOp) -> Iterator[CallOp]:
    """
    Yields the calls in a function. Raises DistIRError if the function does not have
    exactly one block, or if `check_body` refuses an op in it.
    """
    _check_straight(function)
    for op in function.body.block.ops:
        # Not `isinstance`, which is slow where the answer is no.
        if type(op) is CallOp:
            yield op
        elif op.regions:
            check_body(op)


def check_body(op: Operation) -> None:
    """
    Raises DistIRError if the body of `op` computes tensors or uses values from outside
    of the body, as loops do. A body on single numbers, as in `linalg.generic`, is
    allowed.
    """
    inside = {value for region in op.regions for value in _values_in(region)}
    for region in op.regions:
        for inner in region.walk():
            if any(value not in inside for value in inner.operands):
                raise _unknown_body(
                    op, f"{inner.name} in it takes a value from outside"
                )
    if any(isinstance(value.type, ShapedType) for value in inside):
        raise _unknown_body(op, "it computes tensors")


def _values_in(region: Region) -> Iterator[SSAValue]:
    for block in region.blocks:
        yield from block.args
    for op in region.walk():
        yield from op.results
        for inner in op.regions:
            for block in inner.blocks:
                yield from block.args


def _unknown_body(op: Operation, why: str) -> DistIRError:
    return DistIRError(
        f"{describe(op)} has a body of its own ({why}); a program of DistIR is "
        f"straight-line code of tensors, so unroll loops and take one side of conditions "
        f"before"
    )


def calls_of(function: FuncOp) -> list[CallOp]:
    """Returns all calls of `function` in its module."""
    module = function.parent_op()
    if not isinstance(module, ModuleOp):
        return []
    return [
        call
        for caller in functions(module).values()
        for call in _calls(caller)
        if call.callee.string_value() == function.sym_name.data
    ]


def unique_name(module: ModuleOp, name: str) -> str:
    """Returns `name` if no function has it, else `name` with a number at its end."""
    return free_name(functions(module), name)


def return_op(function: FuncOp) -> ReturnOp:
    """
    Returns the return op of a function. Raises DistIRError if the function does not end
    in a return op.
    """
    last = function.body.block.last_op
    if not isinstance(last, ReturnOp):
        raise DistIRError(
            f"function @{function.sym_name.data} does not end in func.return"
        )
    return last


def walk_functions(module: ModuleOp) -> Iterator[tuple[FuncOp, Operation]]:
    """
    Yields every op of every function, together with its function, in program order.
    """
    for function in functions(module).values():
        _check_straight(function)
        for op in function.body.block.ops:
            yield function, op


def ancestors(
    values: Iterable[SSAValue], known: Container[SSAValue] = ()
) -> set[Operation]:
    """
    Returns the ops on which `values` depend, directly or not. The search stops at
    values in `known`: an op that is needed only for values in `known` is left out.
    """
    found: set[Operation] = set()
    pending = list(values)
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending += [v for v in owner.operands if v not in known]
    return found


MAX_EXECUTED = 10_000_000
"""
The largest number of ops in a run that tools follow one by one. Each call of a function
adds the ops of that function. The number can grow exponentially with the length of a
program: in 30 functions, each of which calls the next one twice, it is about 2^30.
"""


def check_executed(module: ModuleOp, roots: Iterable[FuncOp]) -> None:
    """
    Raises DistIRError if a run of one of the functions in `roots` executes more than
    `MAX_EXECUTED` ops, or never ends because calls are recursive.
    """
    executed: dict[str, int] = {}
    for function in callees_first(module, roots):
        name = function.sym_name.data
        ops = list(function.body.block.ops)
        executed[name] = len(ops) + sum(
            executed[op.callee.string_value()] for op in ops if isinstance(op, CallOp)
        )
        if executed[name] > MAX_EXECUTED:
            raise DistIRError(
                f"a run of @{name} executes {executed[name]:,} ops, because functions call "
                f"others several times, and these again; at most {MAX_EXECUTED:,} are "
                f"followed one by one, so write fewer calls"
            )


def other_functions(module: ModuleOp) -> list[FuncOp]:
    """
    Returns the public functions that the entry function does not reach, such as an
    `@eval` beside `@main`, and all functions that these public functions call. DistIR
    does not change the returned functions.
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
    """Whether any value of a function has a layout."""
    types = [*function.function_type.inputs.data, *function.function_type.outputs.data]
    types += [result.type for op in function.walk() for result in op.results]
    return any(layout_of(type_) is not None for type_ in types)


def left_alone(module: ModuleOp) -> set[FuncOp]:
    """
    Returns the functions that neither belong to the program nor are distributed: the
    entry function does not reach them, a different public function does, and none of
    their values has a layout.
    """
    others = other_functions(module)
    if not others:
        return set()
    own = set(reachable_functions(module))
    return {f for f in others if f not in own and not holds_layouts(f)}


def separate_others(module: ModuleOp) -> list[FuncOp]:
    """
    Copies each function that both the entry function and a public function outside of
    the program reach. The functions outside of the program then call the copies, so
    that the program can change without affecting them. Returns the copies.
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
    Removes the private functions that neither the entry function nor any public
    function reaches.
    """
    kept = {*reachable_functions(module), *other_functions(module)}
    for function in functions(module).values():
        if function not in kept:
            function.detach()
