"""
The conventions of a program: its entry function, the roles and names of its arguments and
results, and the links between them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import inf
from typing import NamedTuple

from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    ModuleOp,
    ShapedType,
    StringAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from distir.dialects.collective import CollectiveOp
from distir.dialects.dist import NAME, OF, ROLE, ROLES, SCOPE, UPDATES
from distir.errors import DistIRError
from distir.suggestions import did_you_mean

ENTRY = "main"

MAX_CALL_DEPTH = 100
"""The depth to which calls may nest; passes and interpreters follow them by recursion."""

LOSS = "loss"
"""The role of the result that a training step minimises."""

GRADIENT = "gradient"
"""The role of a result that is the gradient of an argument."""

BATCH_ROLES = ("input", "label")
"""The roles of arguments that a batch consists of."""

KEPT = "dist.kept"
"""The attribute of an op that must not be removed even if nothing uses what it computes."""


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Returns the functions of a module by name."""
    return {
        op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)
    }


def entry_function(module: ModuleOp) -> FuncOp:
    """
    Returns the function `@main`, or the only function. Raises DistIRError if there is none,
    or if it does not have exactly one block.
    """
    found = functions(module)
    if ENTRY not in found and len(found) != 1:
        raise DistIRError(
            f"the module has {len(found)} functions and none is called @{ENTRY}; "
            f"name the program's entry function @{ENTRY}"
        )
    entry = found[ENTRY] if ENTRY in found else next(iter(found.values()))
    _check_straight(entry)
    return entry


def reachable_functions(module: ModuleOp) -> list[FuncOp]:
    """
    Returns the functions that the entry function reaches, callees first, itself last.
    Raises DistIRError if they are not straight-line code: for a function without exactly
    one block, and for calls that are recursive or nested too deep.
    """
    return callees_first(module, [entry_function(module)], MAX_CALL_DEPTH)


def callees_first(
    module: ModuleOp, roots: Iterable[FuncOp], depth: float = inf
) -> list[FuncOp]:
    """
    Returns the functions that some functions reach, themselves included, each after those
    that it calls. Raises DistIRError as `reachable_functions` does.
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
    if len(function.body.blocks) != 1:
        raise DistIRError(
            f"function @{function.sym_name.data} has {len(function.body.blocks)} blocks; "
            f"a program of DistIR is straight-line code, so define it with one"
        )


def _calls(function: FuncOp) -> Iterator[CallOp]:
    """Yields the calls of a function; what stands in the way of others is refused."""
    _check_straight(function)
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            yield op
        elif op.regions:
            check_body(op)


def check_body(op: Operation) -> None:
    """
    Raises DistIRError for an op with a body that computes tensors or takes values from
    around it, such as a loop; a body on single elements, as `linalg.generic` has, is fine.
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


def replace_program(module: ModuleOp, other: ModuleOp) -> None:
    """Replaces everything in a module by what is in another one."""
    for op in list(module.body.block.ops):
        op.detach()
        op.drop_all_references()
    for op in list(other.body.block.ops):
        op.detach()
        module.body.block.add_op(op)
    module.attributes.clear()
    module.attributes.update(other.attributes)


def calls_of(function: FuncOp) -> list[CallOp]:
    """Returns the calls of a function in the functions of its module."""
    module = function.parent_op()
    if not isinstance(module, ModuleOp):
        return []
    return [
        call
        for caller in functions(module).values()
        for call in _calls(caller)
        if call.callee.string_value() == function.sym_name.data
    ]


def erase_dead(block: Block) -> None:
    """
    Erases calls and pure ops without uses, last one first, except for ops that are marked
    `KEPT`.
    """
    for op in reversed(list(block.ops)):
        if is_removable(op) and not any(list(r.uses) for r in op.results):
            block.erase_op(op)


def is_removable(op: Operation) -> bool:
    """Whether an op may be removed if nothing uses its results."""
    # Functions of a program have no effects: they are made of tensor ops. Collectives of a
    # rank must stay only where the other ranks do not remove them too, as DistIR does.
    pure = isinstance(op, CallOp | CollectiveOp) or is_side_effect_free(op)
    return pure and KEPT not in op.attributes


def ancestors(
    values: Iterable[SSAValue], known: Container[SSAValue] = ()
) -> set[Operation]:
    """
    Returns the ops that the values depend on, without those that only the `known` ones
    depend on.
    """
    found: set[Operation] = set()
    pending = list(values)
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending += [v for v in owner.operands if v not in known]
    return found


def drop_unused_results(module: ModuleOp) -> dict[str, list[int]]:
    """
    Removes results of private functions that no call uses. Returns, for each function that
    lost some, the indices of those that it kept.
    """
    dropped: dict[str, list[int]] = {}
    calls: dict[str, list[CallOp]] = {}
    for op in module.walk():
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    known = functions(module)
    for name, sites in calls.items():
        function = known[name]
        returned = return_op(function)
        used = [
            i
            for i in range(len(returned.operands))
            if any(list(site.results[i].uses) for site in sites)
        ]
        if len(used) == len(returned.operands):
            continue
        dropped[name] = used
        outputs = [returned.operands[i] for i in used]
        set_results(function, outputs)
        for site in sites:
            call = called(site, name, site.operands, [v.type for v in outputs])
            kept: list[SSAValue | None] = [None] * len(site.results)
            for new, old in zip(call.results, used, strict=True):
                new.name_hint = site.results[old].name_hint
                kept[old] = new
            Rewriter.replace_op(site, call, kept)
    return dropped


def made_with(
    op: Operation, operands: Sequence[SSAValue], result_types: Sequence[Attribute]
) -> Operation:
    """
    Returns a new op that is the same on other operands, with other result types. Raises
    DistIRError for an op with a body that these would change (`check_body`).
    """
    regions: list[Region] = []
    if op.regions:
        check_body(op)
        regions = [region.clone() for region in op.regions]
    return type(op).create(
        operands=operands,
        result_types=result_types,
        properties=_retyped(op, op.properties, result_types),
        attributes=_retyped(op, op.attributes, result_types),
        regions=regions,
    )


def _retyped(
    op: Operation,
    attributes: Mapping[str, Attribute],
    result_types: Sequence[Attribute],
) -> dict[str, Attribute]:
    """
    Returns attributes of an op that gets other result types. Constants of other dialects
    (`arith.constant`) have the type of their result, which then changes with it.
    """
    found = dict(attributes)
    if op.operands or len(op.results) != 1 or op.name.startswith("onnx."):
        return found
    (before,), (after,) = op.result_types, result_types
    for name, own in found.items():
        if (
            isinstance(own, DenseIntOrFPElementsAttr)
            and own.type == before
            and isinstance(before, TensorType)
            and isinstance(after, TensorType)
            and before.shape == after.shape
        ):
            found[name] = DenseIntOrFPElementsAttr(after, own.data)
    return found


def called(
    op: CallOp,
    name: str,
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
) -> CallOp:
    """Returns a new call of another function in place of a call."""
    return CallOp.create(
        operands=operands,
        result_types=result_types,
        properties={"callee": SymbolRefAttr(name)},
        attributes=op.attributes.copy(),
    )


def replace_call(
    call: CallOp,
    name: str,
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
) -> CallOp:
    """
    Replaces a call by one of another function, whose first results replace those of the
    call. Returns the new call.
    """
    new = called(call, name, operands, result_types)
    Rewriter.insert_op(new, InsertPoint.before(call))
    for before, after in zip(call.results, new.results, strict=False):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    Rewriter.erase_op(call)
    return new


def unique_name(module: ModuleOp, name: str) -> str:
    """Returns the name, followed by a number if a function has that name already."""
    return free_name(functions(module), name)


def free_name(taken: Container[str], name: str) -> str:
    """Returns the name, followed by a number if it is taken."""
    if name not in taken:
        return name
    return next(f"{name}_{n}" for n in count(1) if f"{name}_{n}" not in taken)


def return_op(function: FuncOp) -> ReturnOp:
    """Returns the return op of a function. Raises DistIRError."""
    last = function.body.block.last_op
    if not isinstance(last, ReturnOp):
        raise DistIRError(
            f"function @{function.sym_name.data} does not end in func.return"
        )
    return last


def set_results(
    function: FuncOp,
    values: Sequence[SSAValue],
    attributes: Sequence[dict[str, Attribute]] = (),
) -> None:
    """
    Makes a function return these values, described by these attribute dictionaries (by
    default without attributes), and brings its type up to date, that of its arguments too.
    """
    Rewriter.replace_op(return_op(function), ReturnOp(*values), [])
    function.update_function_type()
    set_result_attributes(function, attributes)


def argument_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns the attribute dictionaries of the arguments (copies)."""
    count = len(function.function_type.inputs)
    if function.arg_attrs is None:
        return [{} for _ in range(count)]
    return [dict(d.data) for d in function.arg_attrs.data]


def result_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns the attribute dictionaries of the results (copies)."""
    count = len(function.function_type.outputs)
    if function.res_attrs is None:
        return [{} for _ in range(count)]
    return [dict(d.data) for d in function.res_attrs.data]


def set_argument_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of the arguments."""
    function.arg_attrs = _dictionaries(attributes)


def set_result_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of the results."""
    function.res_attrs = _dictionaries(attributes)


def _dictionaries(
    attributes: Sequence[dict[str, Attribute]],
) -> ArrayAttr[DictionaryAttr] | None:
    if not any(attributes):
        return None
    return ArrayAttr([DictionaryAttr(own) for own in attributes])


def text_attribute(attributes: Mapping[str, Attribute], name: str) -> str | None:
    """
    Returns the string under that name, or None. Raises DistIRError for bytes that are no
    text.
    """
    attr = attributes.get(name)
    if attr is None or isinstance(attr, StringAttr):
        return attr and attr.data
    if isinstance(attr, BytesAttr):  # what plain xDSL reads letters outside of ASCII as
        try:
            return attr.data.decode()
        except UnicodeDecodeError as error:
            raise DistIRError(f"the attribute {name} = {attr} is no text") from error
    return None


def _argument_texts(function: FuncOp, name: str) -> Sequence[str | None]:
    """Returns the string that each argument has under a name."""
    if function.arg_attrs is None:
        return [None] * len(function.function_type.inputs)
    return _texts(_Same(function.arg_attrs), name)


class _Same(NamedTuple):
    """
    Attributes compared by their identity: there are thousands, too many to compare or hash.
    """

    of: ArrayAttr[DictionaryAttr]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


@lru_cache(maxsize=32)
def _texts(attributes: _Same, name: str) -> tuple[str | None, ...]:
    """
    Returns the string that each dictionary has under a name; cached, as it is asked
    repeatedly.
    """
    return tuple([text_attribute(d.data, name) for d in attributes.of.data])


def argument_roles(function: FuncOp) -> list[str]:
    """
    Returns the role of each argument; `input` if it has none. Raises DistIRError for a role
    that there is not: what is misspelt would pass for an input, and not be trained.
    """
    given = _argument_texts(function, ROLE)
    for unknown in sorted({role for role in given if role} - {*ROLES}):
        raise DistIRError(
            f"@{function.sym_name.data}: an argument has the role {unknown!r} ({ROLE}); "
            f"{did_you_mean(unknown, ROLES)}the roles are {', '.join(ROLES)}"
        )
    return [role or "input" for role in given]


def result_roles(function: FuncOp) -> list[str]:
    """Returns the role of each result, `LOSS` or `GRADIENT`; `output` if it has none."""
    return [text_attribute(r, ROLE) or "output" for r in result_attributes(function)]


def argument_names(function: FuncOp) -> list[str]:
    """Returns the source name of each argument; its SSA name or position if it has none."""
    given = _argument_texts(function, NAME)
    return [
        name or arg.name_hint or f"arg{arg.index}"
        for arg, name in zip(function.body.block.args, given, strict=True)
    ]


def result_names(function: FuncOp) -> list[str]:
    """
    Returns the source name of each result, `output<i>` if it has none; names that several
    results have get a number, so that all differ.
    """
    names: dict[str, None] = {}
    for i, attributes in enumerate(result_attributes(function)):
        name = text_attribute(attributes, NAME) or f"output{i}"
        unique, count = name, 1
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names[unique] = None
    return list(names)


def updated_arguments(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that replace an argument in the next step: result index to argument
    index. Raises DistIRError for the name of an argument that does not exist.
    """
    return _named_arguments(function, function.res_attrs, UPDATES, "result {} updates")


def parameters_of_states(function: FuncOp) -> dict[int, int]:
    """
    Returns the arguments that belong to another one, as an optimizer's states do to a
    parameter: index to index. Raises DistIRError for the name of an argument that does not
    exist.
    """
    return _named_arguments(
        function, function.arg_attrs, OF, "argument {} is a state of"
    )


def parameters_of_gradients(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that are gradients of an argument: result index to argument index.
    Raises DistIRError for the name of an argument that does not exist.
    """
    return _named_arguments(
        function, function.res_attrs, OF, "result {} is the gradient of"
    )


def linked_arguments(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that must have the layout of an argument, because they replace it in
    the next step or are its gradient: result index to argument index.
    """
    return {**parameters_of_gradients(function), **updated_arguments(function)}


def is_training_step(function: FuncOp) -> bool:
    """Whether a program returns updates of its arguments, or the gradients of some."""
    return bool(linked_arguments(function))


def check_links(function: FuncOp) -> None:
    """Raises DistIRError for an attribute that names an argument which does not exist."""
    updated_arguments(function)
    parameters_of_states(function)
    parameters_of_gradients(function)


def _named_arguments(
    function: FuncOp, owners: ArrayAttr[DictionaryAttr] | None, link: str, what: str
) -> dict[int, int]:
    """Returns which argument each of the owners names with the attribute `link`, if any."""
    links = () if owners is None else _texts(_Same(owners), link)
    wanted = {i: name for i, name in enumerate(links) if name is not None}
    if not wanted:
        return {}
    names = _argument_texts(function, NAME)
    places = {n: i for i, n in enumerate(names) if n}
    for i, name in wanted.items():
        if name not in places:
            raise DistIRError(
                f"@{function.sym_name.data}: {what.format(i)} an argument {name!r}, which "
                f'is not there; give that argument dist.name = "{name}"'
            )
    if len(places) < len(names):  # some have no name, or one that another has
        for i, name in wanted.items():
            if names.count(name) > 1:
                raise DistIRError(
                    f"@{function.sym_name.data}: {what.format(i)} an argument {name!r}, "
                    f"but several have this dist.name; give each its own"
                )
    return {i: places[name] for i, name in wanted.items()}


def forward_results(function: FuncOp) -> list[int]:
    """
    Returns the indices of the results of the forward pass: all but updates and gradients.
    """
    updates = updated_arguments(function)
    roles = result_roles(function)
    return [i for i in range(len(roles)) if i not in updates and roles[i] != GRADIENT]


_HINT = re.compile(r"(?!(?:_\d+)+$)[A-Za-z_$.-][\w$.-]*", re.ASCII)
"""
A name that a value can keep. xDSL cuts `_` with a number off the end each time that a value
is copied, and refuses a copy of a name of which nothing is left.
"""


def name_hint(name: str) -> str | None:
    """
    Returns a name hint for an SSA value that has this name in the source model: the name
    itself, or as much of its last part as SSA names can have; None if nothing is left. A
    hint is only a label: the source name is `dist.name`.
    """
    hint = name
    if not is_name_hint(hint):
        last = re.split("/|::", name)[-1]
        hint = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_")
        # Printers give names of digits alone to values without a name.
        if hint[:1].isdigit() and not hint.isdigit():
            hint = f"_{hint}"
    return hint if is_name_hint(hint) else None


def is_name_hint(name: str) -> bool:
    """Returns whether a value, and all its copies, can have a name as their hint."""
    return _HINT.fullmatch(name) is not None


def scope_of(op: Operation) -> str:
    """
    Returns the dotted path of the source module that an op came from; "" if there is none.
    """
    return text_attribute(op.attributes, SCOPE) or ""


def describe(op: Operation) -> str:
    """Returns an op as messages name it: its name, scope and first result."""
    text = op.name
    if op.results and op.results[0].name_hint:
        text += f" %{op.results[0].name_hint}"
    scope = scope_of(op)
    return f"{text} (in {scope})" if scope else text


def walk_functions(module: ModuleOp) -> Iterator[tuple[FuncOp, Operation]]:
    """Yields every op of every function, in program order."""
    for function in functions(module).values():
        for op in function.body.block.ops:
            yield function, op
