"""
Checks a distributed program against the numbers of collectives that a user expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Operation

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import SliceOp
from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import EXPECTED, text_attribute
from distir.errors import DistIRError, listed
from distir.planning.modules import ProgramModules
from distir.program import (
    ancestors,
    describe,
    forward_results,
    is_training_step,
    return_op,
    scope_of,
)
from distir.sharding.mesh import meshes


def expect(
    module: ModuleOp,
    scope: str,
    collectives: Mapping[str, int],
    axis: str,
    by: str,
    *,
    backward: bool = False,
) -> None:
    """
    Records the number of collectives that a user or pass expects in a module of the
    model after the program is distributed. `collectives` gives the exact number for
    each kind, such as `all_reduce`. Collectives over other mesh axes than `axis` are
    ignored. `scope` is the path of the module. The numbers are for the module's forward
    pass or, with `backward`, for its backward pass. `by` names the user or pass in
    error messages.
    """
    known = module.attributes.get(EXPECTED)
    before = known.data if isinstance(known, ArrayAttr) else ()
    counts = {kind: IntegerAttr(count, i64) for kind, count in collectives.items()}
    entry: dict[str, Attribute] = {
        "module": StringAttr(scope),
        "collectives": DictionaryAttr(counts),
        "axis": StringAttr(axis),
        "by": StringAttr(by),
    }
    if backward:
        entry["backward"] = UnitAttr()
    module.attributes[EXPECTED] = ArrayAttr([*before, DictionaryAttr(entry)])


def check_expectations(module: ModuleOp, micro_batches: int = 1) -> None:
    """
    Checks the recorded expectations against a distributed program and removes them.
    Numbers of collectives are per micro-batch. An expectation is ignored if the meshes
    lack its axis, if the axis has size 1, or if the expectation is for a backward pass
    and the program has none. Raises DistIRError if the number of collectives differs
    from an expectation.
    """
    expected = module.attributes.pop(EXPECTED, None)
    if not isinstance(expected, ArrayAttr):
        return
    known = meshes(module)
    modules = ProgramModules(module)
    last = return_op(modules.entry)
    needed = ancestors(last.operands[i] for i in forward_results(modules.entry))
    for entry in expected.data:
        assert isinstance(entry, DictionaryAttr)
        scope, axis, by = (
            text_attribute(entry.data, name) or "" for name in ("module", "axis", "by")
        )
        counts, is_backward = entry.data["collectives"], "backward" in entry.data
        assert isinstance(counts, DictionaryAttr)
        # Stages may have meshes of different shapes.
        own = {
            layout.mesh
            for scoped in modules.ops
            if _is_within(scoped.scope, scope)
            for result in scoped.op.results
            if (layout := layout_of(result)) is not None
        }
        if all(known[name].sizes.get(axis, 1) == 1 for name in own or known):
            continue
        if is_backward and not is_training_step(modules.entry):
            continue
        wanted = {
            kind: count.value.data
            for kind, count in counts.data.items()
            if isinstance(count, IntegerAttr)
        }
        found: dict[str, list[CollectiveOp]] = {kind: [] for kind in wanted}
        for scoped in modules.ops:
            op = scoped.op
            if (
                isinstance(op, CollectiveOp)
                and axis in op.axis_names
                and _is_within(scoped.scope, scope)
                and (scoped.entered in needed) != is_backward
            ):
                kind = op.kind
                if kind in wanted or not isinstance(op, SliceOp):  # no communication
                    found.setdefault(kind, []).append(op)
        # Collectives that run once for all micro-batches count once per micro-batch.
        numbers = {k: ceil(len(ops) / micro_batches) for k, ops in found.items()}
        wrong = [k for k, number in numbers.items() if number != wanted.get(k, 0)]
        if wrong:
            after = listed(
                [_reason(op) for kind in wrong for op in dict.fromkeys(found[kind])]
            )
            raise DistIRError(
                f"{by}: the {'backward' if is_backward else 'forward'} of "
                f"{scope or 'the model'} has {_counted(numbers)} over {axis!r}, expected "
                f"{_counted(wanted)}"
                + (f": {after}" if after else "")
                + "; ask for other splits, or expect what there is"
            )


def _counted(numbers: Mapping[str, int]) -> str:
    texts = [f"{number} {kind}" for kind, number in numbers.items() if number]
    return " and ".join(texts) or "no communication"


def _is_within(scope: str, module: str) -> bool:
    return not module or scope == module or scope.startswith(f"{module}.")


def _reason(op: CollectiveOp) -> str:
    owner = op.source.owner
    if isinstance(owner, Operation):
        return f"after {describe(owner)}"
    return f"of %{op.source.name_hint or 'an argument'} (in {scope_of(op)})"
