"""
Adds the layouts of a distributed program to the StableHLO module that the program was
imported from, as shardings of the dialect Shardy (`sdy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError, listed
from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.file import entry_of
from distir.frontends.stablehlo.importer import convert_module
from distir.frontends.stablehlo.origins import layouts_of_origins
from distir.frontends.stablehlo.parser import parse_stablehlo
from distir.frontends.stablehlo.registry import HloResult
from distir.frontends.stablehlo.requests import GSPMD, SDY, is_constraint
from distir.program import entry_function, return_op
from distir.sharding.mesh import Mesh, meshes

PER_VALUE = "sdy.sharding"


class SdyText(NamedTuple):
    """The text of a StableHLO module with Shardy shardings, and notes for the user."""

    text: str
    notes: list[str]


def write_shardings(program: ModuleOp, stablehlo: str, source: str) -> SdyText:
    """
    Returns the module `stablehlo` with Shardy shardings for its arguments, its results
    and its inner values. The shardings are the layouts of `program`, a distributed
    program that was imported from this module, and replace any earlier shardings.
    `source` names the module in messages.

    The notes name layouts that Shardy cannot express and count the values without a
    sharding. Raises DistIRError if the program was not made from this module, is a
    pipeline, or runs in micro-batches: Shardy can express neither pipelines nor
    micro-batches.
    """
    mesh = _only_mesh(program)
    parsed = parse_stablehlo(stablehlo, source)
    entry = entry_of(parsed, source)
    function = entry_function(program)
    given = function.function_type.inputs.data[: len(entry.function_type.inputs)]
    returned = [value.type for value in return_op(function).operands]
    _check_same(entry.function_type.inputs.data, given, source)
    _check_same(entry.function_type.outputs.data, returned, source)
    writer = _ShardingWriter(mesh)
    arguments = [writer.sharding(t, f"argument {i}") for i, t in enumerate(given)]
    results = [writer.sharding(t, f"result {i}") for i, t in enumerate(returned)]
    held: list[Any] = []
    made = convert_module(parsed, source, None, held)
    found = layouts_of_origins(made.module, held, program)
    _check_found(found, source)
    inside = writer.inside(list(parsed.walk()), found)
    # JAX is not installed everywhere; only this function needs it.
    ir: Any = import_module("jaxlib.mlir.ir")
    mlir: Any = import_module("jax.interpreters.mlir")
    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        _rewrite(ir, module, mesh, arguments, results, inside)
        if not module.operation.verify():
            raise DistIRError(f"{source} with shardings is no valid module")
        text = module.operation.get_asm(enable_debug_info=True)
    return SdyText(text, writer.notes())


def _only_mesh(program: ModuleOp) -> Mesh:
    found = list(meshes(program).values())
    if len(found) != 1:
        what = "is a pipeline, with a mesh for each stage" if found else "has no mesh"
        raise DistIRError(
            f"sdy: the program {what}; shardings are for one mesh of devices that all run "
            f"the same program: distribute it with -p 1"
        )
    return found[0]


def _check_same(
    wanted: Sequence[Attribute], found: Sequence[Attribute], source: str
) -> None:
    shapes = [
        [t.get_shape() for t in types if isinstance(t, TensorType)]
        for types in (wanted, found)
    ]
    if shapes[0] != shapes[1]:
        raise DistIRError(
            f"{source} has other arguments or results than the distributed program; give "
            f"the StableHLO from which that was imported"
        )


def _check_found(found: Mapping[HloResult, set[Layout]], source: str) -> None:
    """
    Raises DistIRError if the distributed program lacks most values of the StableHLO
    module. Programs over micro-batches lack most values, because they compute each
    value in parts.
    """
    known = sum(bool(layouts) for layouts in found.values())
    if 2 * known < len(found):
        raise DistIRError(
            f"sdy: {known} of {len(found)} values of {source} are in the distributed program: "
            f"it runs in micro-batches, which shardings cannot say, or is from another "
            f"file; distribute it with -k 1"
        )


class _ShardingWriter:
    """
    Writes layouts on `mesh` as Shardy text, and counts the layouts that Shardy cannot
    express.
    """

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.dealt: list[str] = []
        self.written = self.missing = self.differing = self.partial = 0

    def sharding(self, type_: Attribute, what: str) -> str | None:
        """
        Returns the sharding of an argument or a result of type `type_`, as text.
        Returns None for a block-cyclic layout, which Shardy cannot express; a note then
        names the value as `what`.
        """
        layout = layout_of(type_)
        assert layout is not None and isinstance(type_, TensorType)
        if _is_dealt(layout):
            self.dealt.append(f"{what} ({layout})")
            return None
        # XLA returns no partial sums: a result that is partial here is complete there.
        return self.text(Layout(layout.mesh, layout.dims), len(type_.get_shape()))

    def text(self, layout: Layout, rank: int) -> str:
        """
        Returns a layout as text, such as `<@mesh, [{"d"}, {}]>`. The layout must not be
        block-cyclic. `rank` is the value's number of dimensions.
        """
        dims = [
            f"{{{', '.join(f'{chr(34)}{shard.axis}{chr(34)}' for shard in dim)}}}"
            for dim in layout.full_dims(rank)
        ]
        return f"<@{self.mesh.name}, [{', '.join(dims)}]>"

    def inside(
        self, ops: Sequence[Any], found: Mapping[HloResult, set[Layout]]
    ) -> dict[int, str]:
        """
        Returns the shardings of the results of `ops`, by the index of the op in the
        module. Leaves out ops that have a result without a sharding.
        """
        written: dict[int, str] = {}
        for place, op in enumerate(ops):
            origins = [HloResult(op, i) for i in range(len(op.results))]
            own = [found[origin] for origin in origins if origin in found]
            is_kept = op_name(op).startswith(("stablehlo.", "chlo."))
            if not own or not is_kept or is_constraint(op):
                continue
            if len(own) < len(origins) or not all(own):
                self.missing += 1
            elif any(len(layouts) > 1 for layouts in own):
                self.differing += 1
            elif any(layout.partial for layouts in own for layout in layouts):
                self.partial += 1
            elif any(_is_dealt(layout) for layouts in own for layout in layouts):
                self.dealt.append(f"the result of {op_name(op)}")
            else:
                texts = [
                    self.text(next(iter(layouts)), len(result.type.get_shape()))
                    for layouts, result in zip(own, op.results, strict=True)
                ]
                written[place] = f"#sdy.sharding_per_value<[{', '.join(texts)}]>"
                self.written += 1
        return written

    def notes(self) -> list[str]:
        """Returns notes for the user on layouts that were not written."""
        notes = [f"sdy: {self.written} ops inside have shardings"]
        if self.partial:
            notes.append(
                f"sdy: {self.partial} ops whose results are partial sums have none: XLA "
                f"decides when to reduce them"
            )
        if self.differing:
            notes.append(
                f"sdy: {self.differing} ops in loops have none, as their layouts differ "
                f"from round to round"
            )
        if self.missing:
            notes.append(
                f"sdy: {self.missing} ops have none, as rewrites replaced them in the "
                f"distributed program"
            )
        if self.dealt:
            notes.append(
                f"sdy: dimensions dealt out in runs (block-cyclic) cannot be said: "
                f"{listed(self.dealt)} have no sharding, and XLA chooses one"
            )
        return notes


def _is_dealt(layout: Layout) -> bool:
    return any(shard.run for dim in layout.dims for shard in dim)


def _rewrite(
    ir: Any,
    module: Any,
    mesh: Mesh,
    arguments: Sequence[str | None],
    results: Sequence[str | None],
    inside: Mapping[int, str],
) -> None:
    """
    Replaces the shardings in an MLIR module. `ir` is the module `ir` of jaxlib's MLIR
    bindings.
    """
    ops: list[Any] = []

    def visit(op: Any) -> Any:
        ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for place, text in inside.items():
        ops[place].attributes[PER_VALUE] = ir.Attribute.parse(text)
    for op in ops:
        if _is_constraint(op):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name == "sdy.mesh":
            op.erase()
        elif op.name == "func.func" and op.attributes["sym_name"].value == "main":
            _set_values(ir, op, "arg_attrs", arguments)
            _set_values(ir, op, "res_attrs", results)
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
    partitions = "mhlo.num_partitions"
    if partitions in module.operation.attributes:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), len(mesh.devices))
        module.operation.attributes[partitions] = number
    made = ir.Operation.parse(f"sdy.mesh @{mesh.name} = <[{axes}]>")
    ir.InsertionPoint.at_block_begin(module.body).insert(made)


def _is_constraint(op: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        return op.attributes["call_target_name"].value == "Sharding"
    return op.name in ("sdy.sharding_constraint", "sdy.reshard")


def _set_values(
    ir: Any, function: Any, name: str, shardings: Sequence[str | None]
) -> None:
    """
    Sets the shardings of all arguments or results of a function. The function's
    attribute `name` has a dictionary for each argument or result.
    """
    before = list(function.attributes[name]) if name in function.attributes else []
    before += [ir.DictAttr.get({})] * (len(shardings) - len(before))
    entries: list[Any] = []
    for old, text in zip(before, shardings, strict=True):
        own = {entry.name: entry.attr for entry in ir.DictAttr(old)}
        own = {key: value for key, value in own.items() if key not in (SDY, GSPMD)}
        if text is not None:
            own[SDY] = ir.Attribute.parse(f"#sdy.sharding{text}")
        entries.append(ir.DictAttr.get(own))
    function.attributes[name] = ir.ArrayAttr.get(entries)
