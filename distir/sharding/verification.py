"""
The type check of distributed programs: it derives layouts by sharding rules and
compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp, is_per_rank
from distir.dialects.collective_ops.rooted import GatherOp, ReduceOp, RootedOp
from distir.dialects.constants import draws_random_numbers
from distir.dialects.dist import Layout, layout_of
from distir.dialects.dist_attributes import BUCKET
from distir.dialects.kernel import kernels
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import (
    argument_names,
    check_links,
    describe,
    entry_function,
    functions,
    reachable_functions,
)
from distir.program.checks import check_dominance
from distir.program.functions import holds_layouts, left_alone
from distir.program.source_forms import check_source_forms
from distir.sharding.kernel_parts import check_rule
from distir.sharding.layout import check_layout, layout_problem, places_the_same
from distir.sharding.local import mesh_of_op
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.rule import Rule, factor_shards, inference_of
from distir.sharding.sends import check_send
from distir.sharding.signatures import Signatures, on_any_mesh


def _shown(type_: Attribute) -> str:
    layout = layout_of(type_)
    return f"layout {layout}" if layout is not None else f"type {type_}"


class DistributionVerifier:
    """
    The type check of one distributed program. After a successful check, `is_right_on`
    checks the program again with different sizes of the mesh axes, and covers only the
    facts that these sizes affect.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self.meshes: Mapping[str, Mesh] = meshes(module)
        self.functions = functions(module)
        self.entry = entry_function(module)
        # Types that were found right, by their ids: the same few come again and again.
        self._right: dict[int, Attribute] = {}
        self._signatures = Signatures()
        self._on_any_mesh = Signatures(on_any_mesh)
        self._communication: set[int] = set()
        """The ids of sends and collectives that passed the check."""
        self._checked: dict[tuple[int, tuple[tuple[str, int], ...]], Operation] = {}
        """
        The ops that passed the check, by their ids on any mesh and the axes of their
        mesh. Ops with the same key need no check of their own.
        """

    def verify(self) -> None:
        """
        Raises DistIRError at the first type error, or at the first use of a value
        before its definition. The message names the op and the expected layout.
        """
        check_dominance(self.module)
        check_links(self.entry)
        check_source_forms(self.entry)
        for kernel in kernels(self.module).values():
            check_rule(kernel)
        reachable_functions(self.module)
        alone = left_alone(self.module)
        is_distributed = any(map(holds_layouts, self.functions.values()))
        for function in self.functions.values():
            if is_distributed:
                _check_for_all_ranks(function)
            if function not in alone and not function.is_declaration:
                self.function(function)

    def is_right_on(self, known: Mapping[str, Mesh]) -> bool:
        """
        Whether a program that passed the check also passes with the meshes `known`,
        which differ from the program's meshes in the sizes of their axes. Covers only
        the facts that depend on these sizes.
        """
        self.meshes = known
        for type_ in self._right.values():
            layout = layout_of(type_)
            assert layout is not None and isinstance(type_, TensorType)
            if (
                layout_problem(type_.get_shape(), layout, known[layout.mesh])
                is not None
            ):
                return False
        return all(self._problem(op) is None for op in self._checked.values())

    def function(self, function: FuncOp) -> None:
        name = function.sym_name.data
        names = argument_names(function)
        inputs = function.function_type.inputs.data
        for arg, declared in zip(function.body.block.args, inputs, strict=True):
            what = f"@{name}: argument {names[arg.index]!r}"
            if arg.type != declared:
                raise DistIRError(
                    f"{what} has {_shown(arg.type)}, expected {_shown(declared)} as the "
                    f"function's type says"
                )
            self.type(arg.type, what)
        buckets: dict[Attribute, Operation] = {}
        """The last op of each bucket so far."""
        for op in function.body.block.ops:
            for result in op.results:
                if id(result.type) not in self._right:
                    self.type(result.type, f"@{name}: {describe(op)}")
            try:
                self.op(op, function)
                if isinstance(op, CollectiveOp) and BUCKET in op.attributes:
                    self._in_bucket(op, buckets)
            except (DistIRError, VerifyException) as error:
                raise DistIRError(f"@{name}: {describe(op)}: {error}") from error

    def type(self, type_: Attribute, what: str) -> None:
        """
        Checks that a type has a layout if it is a tensor, and that its shape and mesh
        allow the layout. Raises DistIRError if not; `what` names the value.
        """
        if not isinstance(type_, TensorType):
            return
        layout = layout_of(type_)
        if layout is None:
            raise DistIRError(
                f"{what}: {type_} has no layout; in a distributed program every tensor "
                f"has a #dist.layout"
            )
        if layout.mesh not in self.meshes:
            raise DistIRError(f"{what}: there is no device.mesh @{layout.mesh}")
        check_layout(type_.get_shape(), layout, self.meshes[layout.mesh], what)
        self._right[id(type_)] = type_

    def op(self, op: Operation, function: FuncOp) -> None:
        if is_per_rank(op):
            raise DistIRError(
                "belongs to the program of one rank; a distributed program says by layouts "
                "who holds what"
            )
        # Not `isinstance`, which is slow where the answer is no, as it mostly is.
        if type(op) is CallOp:
            self.call(op)
        elif type(op) is ReturnOp:
            self.returned(op, function)
        elif isinstance(op, CollectiveOp | dist.SendOp):
            self.communication(op)
        elif type(op) is dist.ReshardOp:
            op.verify_()
        elif type(op) is dist.ConstrainOp:
            raise DistIRError(
                "dist.constrain belongs to sequential programs; partition removes it"
            )
        else:
            self.compute(op)

    def _in_bucket(self, op: CollectiveOp, buckets: dict[Attribute, Operation]) -> None:
        """
        Checks that an op stands next to the other ops of its bucket, and that one
        message can carry all these ops. Raises DistIRError if not.
        """
        op.check_bucket()
        number = op.attributes[BUCKET]
        last = buckets.get(number)
        if last is not None and not op.is_joined:
            assert last.next_op is not None  # this op or one before it
            raise DistIRError(
                f"has {BUCKET} = {number}, as {describe(last)} has, but {last.next_op.name} "
                f"is between them; give it another number or remove {BUCKET}"
            )
        buckets[number] = op

    def call(self, op: CallOp) -> None:
        callee = self.functions.get(op.callee.string_value())
        if callee is None or callee.is_declaration:
            raise DistIRError(
                f"calls @{op.callee.string_value()}, which the module does not define"
            )
        inputs = callee.function_type.inputs.data
        outputs = callee.function_type.outputs.data
        if len(inputs) != len(op.operands) or len(outputs) != len(op.results):
            raise DistIRError(
                f"@{callee.sym_name.data} takes {len(inputs)} arguments and gives "
                f"{len(outputs)} results; the call has {len(op.operands)} and "
                f"{len(op.results)}"
            )
        for i, (value, expected) in enumerate(zip(op.operands, inputs, strict=True)):
            type_ = value.type
            if type_ is not expected and type_ != expected:
                raise DistIRError(
                    f"operand {i} ({argument_names(callee)[i]!r}) has {_shown(type_)}, "
                    f"expected {_shown(expected)} of @{callee.sym_name.data}"
                )
        for i, (value, expected) in enumerate(zip(op.results, outputs, strict=True)):
            if value.type is not expected and value.type != expected:
                raise DistIRError(
                    f"result {i} has {_shown(value.type)}, expected {_shown(expected)} "
                    f"of @{callee.sym_name.data}"
                )

    def returned(self, op: ReturnOp, function: FuncOp) -> None:
        outputs = function.function_type.outputs.data
        if len(outputs) != len(op.operands):
            raise DistIRError(f"returns {len(op.operands)} values of {len(outputs)}")
        for i, (value, expected) in enumerate(zip(op.operands, outputs, strict=True)):
            if value.type != expected:
                raise DistIRError(
                    f"result {i} has {_shown(value.type)}, expected {_shown(expected)} "
                    f"as the function's type says"
                )
            layout = layout_of(value)
            if function is self.entry and layout is not None and layout.partial:
                raise DistIRError(
                    f"result {i} leaves the program partial; expected layout "
                    f"{layout.without_partial(layout.partial_axes)}"
                )

    def communication(self, op: CollectiveOp | dist.SendOp) -> None:
        signature = self._signatures.of(op)
        if signature in self._communication:
            return
        op.verify_()
        for value in (*op.operands, *op.results):
            layout = layout_of(value)
            if layout is None:
                raise DistIRError("needs a #dist.layout on both sides")
            if layout.mesh not in self.meshes:
                raise DistIRError(f"there is no device.mesh @{layout.mesh}")
        source = layout_of(op.operands[0])
        target = layout_of(op.results[0])
        assert source is not None and target is not None
        if isinstance(op, dist.SendOp):
            before, after = self.meshes[source.mesh], self.meshes[target.mesh]
            check_send(source, before, target, after)
        else:
            self._collective(op, source, target)
        self._communication.add(signature)

    def _collective(self, op: CollectiveOp, source: Layout, target: Layout) -> None:
        """
        Checks that the mesh has the axes of a collective and, for a collective with a
        root, that the root is possible. Raises DistIRError if not.
        """
        wide = target.mesh
        if isinstance(op, ReduceOp | GatherOp):
            wide = source.mesh
        for axis in op.axis_names:
            self.meshes[wide].size(axis)
        if isinstance(op, RootedOp):
            one = target.mesh if wide == source.mesh else source.mesh
            if not self.meshes[wide].has_root(self.meshes[one], op.axis_names):
                raise DistIRError(
                    f"@{one} must be one device, which belongs to @{wide}, and the op must "
                    f"run over all axes of @{wide}"
                )

    def compute(self, op: Operation) -> None:
        layouts = map(layout_of, (*op.operands, *op.results))
        names = {layout.mesh for layout in layouts if layout is not None}
        mesh = mesh_of_op(op, self.meshes)
        if mesh is None:
            return
        key = self._on_any_mesh.of(op), mesh.axes
        if len(names) > 1 or key not in self._checked:
            problem = self._problem(op)
            if problem is not None:
                raise DistIRError(problem)
            self._checked[key] = op

    def _problem(self, op: Operation) -> str | None:
        """
        Returns the reason why the results do not have the layouts that the op's rule
        derives from the layouts of the operands. Returns None if they have these
        layouts.
        """
        mesh = mesh_of_op(op, self.meshes)
        if mesh is None:
            return None
        if len(mesh.devices) > 1 and draws_random_numbers(op):
            return (
                "draws random numbers, and every device would draw others; draw them in the "
                "script, and give them to the model as an input (dropout is the same on all "
                "devices in a training step, or switched off in a model that was exported in "
                "evaluation mode)"
            )
        rule = self._on_any_mesh.rule(op)
        if rule.is_made_anywhere:
            return _made_problem(op, rule, mesh)
        whole = Layout(mesh.name)
        operands = [layout_of(v) or whole for v in op.operands]
        inference = inference_of(rule, operands, mesh)
        if isinstance(inference, str):
            return inference
        for i, (value, expected) in enumerate(
            zip(op.results, inference.results, strict=True)
        ):
            actual = layout_of(value)
            if actual is None or actual == expected:
                continue
            # Splits of different factors commute, so that one layout may be written in
            # several ways; the rule and the plan need not choose the same one.
            if not places_the_same(shape_of(value.type), actual, expected, mesh):
                return (
                    f"result {i} has layout {actual}, expected layout {expected} from "
                    f"the layouts of its operands"
                )
        return None


def _made_problem(op: Operation, rule: Rule, mesh: Mesh) -> str | None:
    """
    Returns the reason why an op that can make its results in any layout cannot make
    them in the layouts of their types. Returns None if it can.
    """
    for i, (value, dims) in enumerate(zip(op.results, rule.results, strict=True)):
        layout = layout_of(value) or Layout(mesh.name)
        if layout.partial:
            return (
                f"result {i} has layout {layout}, but the op makes whole values; expected "
                f"layout {layout.without_partial(layout.partial_axes)}"
            )
        for d, dim in enumerate(dims):
            if factor_shards(layout.dim(d), dim, rule, mesh) is None:
                return f"result {i}: the op cannot split dimension {d} as {layout} does"
    return None


def _check_for_all_ranks(function: FuncOp) -> None:
    """
    Raises DistIRError if a distributed program contains an op that belongs to the
    program of one rank.
    """
    for op in function.walk():
        if is_per_rank(op):
            raise DistIRError(
                f"{describe(op)} belongs to the program of one rank, but the program is "
                f"distributed; `project` makes such ops"
            )


def verify_distribution(module: ModuleOp) -> None:
    """
    Raises DistIRError at the first type error of a distributed program. The message
    names the op and the expected layout.
    """
    DistributionVerifier(module).verify()
