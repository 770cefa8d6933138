"""Applies the ops that rewrite the program."""

from __future__ import annotations

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation

from distir.dialects.dist import LAYOUT
from distir.dialects.dist_attributes import COMPILED, FIXED
from distir.dialects.onnx_ops.values import LOW_PRECISION_FLOATS
from distir.dialects.schedule import CUDA_GRAPH, AutocastOp, CudaGraphOp, MergeOp
from distir.errors import DistIRError, listed
from distir.planning.modules import ScopedOp
from distir.program import argument_attributes, describe, functions, scope_of
from distir.scheduling.rewrites.autocast import Autocast
from distir.scheduling.rewrites.hoist import hoist
from distir.scheduling.rewrites.merge import (
    LinearLayer,
    linear_of,
    merge_linears,
    why_apart,
)
from distir.scheduling.rewrites.separate import CallPath, OpGroup, separate
from distir.scheduling.run import ScheduleRun, origin, schedule_action
from distir.sharding.rule import rule_for


@schedule_action("schedule.merge")
def merge(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.merge`: merges linear layers into one. Raises DistIRError if the
    layers cannot be merged.
    """
    assert isinstance(op, MergeOp)
    names = [layer.data for layer in op.layers]
    count = 1 if op.groups is None else op.groups.value.data
    groups: list[OpGroup] = []
    merged: set[Operation] = set()
    for scope in run.modules_of(op.modules):
        inside = [_products(op, run, f"{scope}.{n}" if scope else n) for n in names]
        if len({tuple(product.path for product in layer) for layer in inside}) > 1:
            raise DistIRError(
                f"{origin(op)}: the layers of {scope!r} are in different functions of the "
                f"program; run `inline-calls` first"
            )
        # Once for each call of the module.
        for products in zip(*inside, strict=True):
            linears = [_linear(op, scoped) for scoped in products]
            problem = why_apart(linears, count)
            if problem is not None:
                raise DistIRError(f"{origin(op)}: in {scope!r}, {problem}")
            ops = tuple(o for linear in linears for o in linear.ops)
            merged.update(ops)
            groups.append(OpGroup(products[0].path, ops))
    _check_parameters(op, run, merged)
    joined: list[Operation] = []
    for group in separate(run.module, groups):
        linears = [x for x in map(linear_of, group.ops) if x is not None]
        inside = scope_of(linears[0].product).split(".")
        inside = inside[: len(inside) - len(names[0].split("."))]
        scope = ".".join([*inside, op.merged.data])
        joined += merge_linears(linears, scope, count)
    hoist(run.module, joined, op.merged.data, count)
    run.rewritten(op)


@schedule_action("schedule.cast")
def cast(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.cast`: makes modules compute in 16 bits, as `AutocastOp`
    documents. Raises DistIRError if no op of the modules can compute in 16 bits.
    """
    assert isinstance(op, AutocastOp)
    by_path: dict[CallPath, dict[Operation, None]] = {}
    for scope in run.modules_of(op.modules):
        for scoped in run.modules.within(scope) if scope else run.modules.ops:
            by_path.setdefault(scoped.path, {})[scoped.op] = None
    groups = [OpGroup(path, tuple(ops)) for path, ops in by_path.items()]
    count = 0
    for group in separate(run.module, groups):
        function = group.ops[0].parent_op()
        assert isinstance(function, FuncOp)
        inside = set(group.ops)
        autocast = Autocast(function, LOW_PRECISION_FLOATS[op.dtype.data])
        autocast.cast([o for o in function.body.block.ops if o in inside])
        count += autocast.count
    if not count:
        scopes = listed([scope or "the model" for scope in run.modules_of(op.modules)])
        raise DistIRError(
            f"{origin(op)}: {scopes} has no product, convolution or attention in f32 that "
            f"could compute in {op.dtype.data}; name modules that have"
        )
    run.rewritten(op)


@schedule_action("schedule.cuda_graph")
def cuda_graph(op: Operation, run: ScheduleRun) -> None:
    """
    Applies `schedule.cuda_graph`: marks the functions that modules call, so that
    packages capture them as CUDA graphs. Raises DistIRError if a module is not a call
    of a function.
    """
    assert isinstance(op, CudaGraphOp)
    groups: dict[CallOp, OpGroup] = {}
    known = functions(run.module)
    for scope in run.modules_of(op.modules):
        for scoped in run.modules.within(scope) if scope else ():
            call = scoped.entered
            if not isinstance(call, CallOp) or scope_of(call) != scope:
                continue
            callee = known[call.callee.string_value()]
            if COMPILED.of(callee.attributes) is not None:
                raise DistIRError(
                    f"{origin(op)}: {scope!r} is run as one piece already "
                    f"({callee.attributes[COMPILED]}); ask for one of these"
                )
            inside = tuple(
                o for o in callee.body.block.ops if not isinstance(o, ReturnOp)
            )
            groups[call] = OpGroup((call,), inside)
        if not any(scope_of(call) == scope for call in groups):
            raise DistIRError(
                f"{origin(op)}: {scope or 'the model'!r} is no call of a function, which "
                f"CUDA could capture; run `outline-repeats`, and name a layer"
            )
    for group in separate(run.module, list(groups.values())):
        function = group.ops[0].parent_op()
        assert isinstance(function, FuncOp)
        function.attributes[COMPILED] = COMPILED.attr(CUDA_GRAPH)
    run.rewritten(op)


def _products(op: MergeOp, run: ScheduleRun, scope: str) -> list[ScopedOp]:
    """
    Returns the one matrix product of module `scope` with a parameter, once per call of
    the module. Raises DistIRError if the module does not exist or does not have exactly
    one such product.
    """
    found = [
        scoped
        for scoped in run.modules.within(scope)
        if rule_for(scoped.op).flops
        and any(
            run.modules.roles[use.index] == "parameter" for use in scoped.uses.values()
        )
    ]
    if not found and scope not in run.modules.scopes:
        near = listed(run.modules.nearest(scope, [""]))
        raise DistIRError(
            f"{origin(op)}: there is no module {scope!r}"
            + (f"; there are {near}" if near else "")
        )
    count = len(found) - len({product.path for product in found}) + 1 if found else 0
    if count != 1:
        raise DistIRError(
            f"{origin(op)}: module {scope!r} has {count} matrix products with a "
            f"parameter, but a linear layer has one"
        )
    return found


def _linear(op: MergeOp, scoped: ScopedOp) -> LinearLayer:
    found = linear_of(scoped.op)
    if found is None:
        raise DistIRError(
            f"{origin(op)}: {describe(scoped.op)} is no linear layer that can be merged: it "
            f"is to be a product of a value and a matrix of parameters, and a bias"
        )
    return found


def _check_parameters(op: MergeOp, run: ScheduleRun, merged: set[Operation]) -> None:
    """
    Checks the parameters of layers before their merging. Raises DistIRError if ops
    outside of `merged` use one of these parameters, or if the user requested a layout
    for one.
    """
    modules = run.modules
    used = {
        use.index: scoped
        for scoped in modules.ops
        if scoped.op in merged
        for use in scoped.uses.values()
        if modules.roles[use.index] == "parameter"
    }
    attributes = argument_attributes(modules.entry)
    for scoped in modules.ops:
        for use in scoped.uses.values():
            if use.index in used and scoped.op not in merged:
                raise DistIRError(
                    f"{origin(op)}: {modules.names[use.index]!r} is tied: "
                    f"{describe(scoped.op)} uses it too, so that it cannot become a part "
                    f"of another parameter"
                )
    for index in used:
        if LAYOUT in attributes[index] or FIXED in attributes[index]:
            raise DistIRError(
                f"{origin(op)}: a split of {modules.names[index]!r} is asked for already; "
                f"merge first, and ask for a split of the merged layer"
            )
