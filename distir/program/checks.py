"""
Checks of a program that was read from a file.

`check_dominance` checks that values are defined before they are used. MLIR checks this
for every program, but xDSL does not. `check_functions` checks that functions have names
and types, which later checks read. `check_dist_attributes` checks the attributes of the
`dist` dialect (`distir.dialects.dist_attributes`) on arguments, results, ops and
functions. Passes often test only for the presence of such an attribute, so that a wrong
value would be ignored or misunderstood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo

from distir.dialects import dist, dist_attributes
from distir.dialects.dist_attributes import BUCKET, ROLE, ROLES, declared
from distir.errors import DistIRError, did_you_mean
from distir.program import GRADIENT, LOSS, describe


def check_dominance(module: ModuleOp) -> None:
    """
    Raises DistIRError, with the names of the op and the value, if an op uses a value
    that no op before it defines. Such a value is a result of the op that uses it, or is
    defined by a later op, in another function, or inside the region of another op.
    """
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            _check(op.body, set(), op)


def _check(region: Region, outside: set[int], function: FuncOp) -> None:
    """
    Checks that the ops of a region use only values defined before them. `outside` holds
    the ids of the values from around the region that its ops may use; ids are faster to
    hash than values.
    """
    blocks = list(region.blocks)
    order = DominanceInfo(region) if len(blocks) > 1 else None
    defined_in = {
        block: {*map(id, block.args), *(id(r) for op in block.ops for r in op.results)}
        for block in (blocks if order is not None else ())
    }
    for block in blocks:
        visible = outside.copy()
        if order is not None:
            for other in blocks:
                if other is not block and order.dominates(other, block):
                    visible |= defined_in[other]
        visible.update(map(id, block.args))
        for op in block.ops:
            for value in op.operands:
                if id(value) not in visible:
                    raise _undefined(op, value, function)
            for inner in op.regions:
                _check(inner, visible, function)
            visible.update(map(id, op.results))


def _undefined(op: Operation, value: SSAValue, function: FuncOp) -> DistIRError:
    hint = f"%{value.name_hint}" if value.name_hint else "a value"
    if value.owner is op:
        where = "its own result"
    elif isinstance(value.owner, Operation):
        where = f"the result of {describe(value.owner)}"
    else:
        where = "an argument of another block"
    return DistIRError(
        f"@{function.sym_name.data}: {describe(op)} uses {hint}, {where}, which no op "
        f"before it defines; put the op that defines a value in front of all that use it"
    )


_PREFIX = "dist."


_KNOWN = declared(dist_attributes, dist)

_FORMER: Mapping[str, str] = {
    "dist.joined": f"remove it and run `distir-opt -p bucket-collectives`, which numbers the "
    f"collectives of one message ({BUCKET})"
}
"""Attributes of older versions, with advice on how to replace each."""


def check_functions(module: ModuleOp) -> None:
    """
    Raises VerifyException if a function has no name or no type. MLIR's generic form
    allows functions without a name or a type.
    """
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and not (
            isinstance(op.properties.get("sym_name"), StringAttr)
            and isinstance(op.properties.get("function_type"), FunctionType)
        ):
            op.verify(verify_nested_ops=False)


def check_dist_attributes(module: ModuleOp) -> None:
    """
    Raises DistIRError if an attribute of the `dist` dialect does not exist, or its
    value has the wrong kind. The message names the function, and the argument, result
    or op.
    """
    _refuse(_problem(module.attributes), "the module")
    for function in module.body.block.ops:
        if isinstance(function, FuncOp):
            _check_function(function)


def _check_function(function: FuncOp) -> None:
    name = f"@{function.sym_name.data}"
    _refuse(_problem(function.attributes), name)
    for what, owners, roles in (
        ("argument", function.arg_attrs, ROLES),
        ("result", function.res_attrs, (LOSS, GRADIENT)),
    ):
        for index, own in enumerate(() if owners is None else owners.data):
            problem = _problem(own.data) or _problem_of_role(own.data, what, roles)
            _refuse(problem, f"{what} {index}{_hint(function, what, index)} of {name}")
    for block in function.body.blocks:
        for op in block.ops:
            problem = _problem(op.attributes)
            if problem is not None:
                _refuse(problem, f"{describe(op)} in {name}")


def _hint(function: FuncOp, what: str, index: int) -> str:
    """
    Returns the SSA name of an argument in parentheses, for a message. Returns an empty
    text for results, and for arguments without a name.
    """
    is_argument = what == "argument" and function.body.blocks
    hint = function.args[index].name_hint if is_argument else None
    return f" (%{hint})" if hint else ""


def _refuse(problem: str | None, owner: str) -> None:
    if problem is not None:
        raise DistIRError(f"{owner} {problem}")


def _problem(attributes: Mapping[str, Attribute]) -> str | None:
    """
    Returns a text that describes the first wrong attribute of the `dist` dialect, or
    None if all attributes of the dialect are right.
    """
    for name, attr in attributes.items():
        kind = _KNOWN.get(name)
        if kind is not None and not kind.holds(attr):
            what = kind.FORM.replace("NAME", name)
            given = name if isinstance(attr, UnitAttr) else f"{name} = {attr}"
            return f"has {given}; it must be {what}"
        if name in _FORMER:
            return f"has {name}, which is no attribute any more; {_FORMER[name]}"
        if kind is None and name.startswith(_PREFIX):
            known = (n.removeprefix(_PREFIX) for n in _KNOWN if n.startswith(_PREFIX))
            return (
                f"has {name}, but there is no such attribute; "
                f"{did_you_mean(name, _KNOWN)}those that begin with {_PREFIX} are "
                f"{', '.join(sorted(known))}"
            )
    return None


def _problem_of_role(
    attributes: Mapping[str, Attribute], what: str, roles: Sequence[str]
) -> str | None:
    role = ROLE.of(attributes)
    if role is None or role in roles:
        return None
    return (
        f"has the role {role!r} ({ROLE}); {did_you_mean(role, roles)}the roles of "
        f"{what}s are {', '.join(roles)}"
    )
