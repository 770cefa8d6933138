"""How often modules communicate, as a user expects it of a distributed program."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.ir import Operation

from distir.dialects.collective import CollectiveOp
from distir.dialects.dist import EXPECTED
from distir.errors import DistIRError, listed
from distir.planning.modules import ProgramModules
from distir.program import (
    ancestors,
    describe,
    forward_results,
    return_op,
    scope_of,
    text_attribute,
)
from distir.sharding.mesh import meshes


def expect(
    module: ModuleOp, scope: str, collective: str, axis: str, count: int, by: str
) -> None:
    """
    Notes that the forward of the module of the model with that path is to have `count`
    collectives of a kind (`all_reduce`) over a mesh axis, once the program is distributed.
    `by` says for messages who expects it.
    """
    known = module.attributes.get(EXPECTED)
    before = known.data if isinstance(known, ArrayAttr) else ()
    entry = DictionaryAttr(
        {
            "module": StringAttr(scope),
            "collective": StringAttr(collective),
            "axis": StringAttr(axis),
            "count": IntegerAttr(count, i64),
            "by": StringAttr(by),
        }
    )
    module.attributes[EXPECTED] = ArrayAttr([*before, entry])


def check_expectations(module: ModuleOp) -> None:
    """
    Refuses a distributed program that does not communicate as is expected of it; the
    expectations go. An axis that its mesh has not, or of size 1, is not asked; pipelines,
    whose stages have meshes of their own, are not either. Raises DistIRError.
    """
    expected = module.attributes.pop(EXPECTED, None)
    known = list(meshes(module).values())
    if not isinstance(expected, ArrayAttr) or len(known) != 1:
        return
    modules = ProgramModules(module)
    last = return_op(modules.entry)
    needed = ancestors(last.operands[i] for i in forward_results(modules.entry))
    forward = [scoped for scoped in modules.ops if scoped.entered in needed]
    for entry in expected.data:
        assert isinstance(entry, DictionaryAttr)
        scope, kind, axis, by = (
            text_attribute(entry.data, name) or ""
            for name in ("module", "collective", "axis", "by")
        )
        count = entry.data["count"]
        assert isinstance(count, IntegerAttr)
        if known[0].sizes.get(axis, 1) == 1:
            continue
        found = [
            scoped.op
            for scoped in forward
            if isinstance(scoped.op, CollectiveOp)
            and scoped.op.name == f"collective.{kind}"
            and axis in scoped.op.axis_names
            and _is_within(scoped.scope, scope)
        ]
        if len(found) != count.value.data:
            after = listed([_reason(op) for op in found])
            raise DistIRError(
                f"{by}: the forward of {scope or 'the model'} has {len(found)} "
                f"{kind} over {axis!r}, expected {count.value.data}"
                + (f": {after}" if found else "")
                + "; ask for other splits, or expect what there is"
            )


def _is_within(scope: str, module: str) -> bool:
    return not module or scope == module or scope.startswith(f"{module}.")


def _reason(op: CollectiveOp) -> str:
    owner = op.source.owner
    if isinstance(owner, Operation):
        return f"after {describe(owner)}"
    return f"of %{op.source.name_hint or 'an argument'} (in {scope_of(op)})"
