"""
Compiles functions for the simulator. Each op is compiled once for all calls of its
function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise

from xdsl.dialects.builtin import AnyFloat
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp, is_per_rank
from distir.dialects.dist import ReshardOp, SendOp, layout_of
from distir.dialects.dist_attributes import ASYNCHRONOUS, RECOMPUTED
from distir.dialects.onnx_ops.traits import CACHE_WRITES
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.indexing import GatherGradOp, adds_by_row
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.errors import DistIRError
from distir.interpreters.simulator.engine.compiled import (
    NOWHERE,
    Allocation,
    CallStep,
    CommunicationStep,
    CompiledFunction,
    CompiledStep,
    ComputationStep,
    FixedOperands,
    OpStep,
)
from distir.interpreters.simulator.engine.computations import Computations
from distir.interpreters.simulator.engine.device_map import (
    Bytes,
    DeviceMap,
    Positions,
    UniformDeviceMap,
)
from distir.interpreters.simulator.engine.distinct_arguments import DistinctArguments
from distir.interpreters.simulator.engine.expert_rows import expert_rows
from distir.interpreters.simulator.engine.pace import pace
from distir.interpreters.simulator.engine.pytorch import add_temporaries, keep_gathered
from distir.interpreters.simulator.engine.strides import share_memory
from distir.interpreters.simulator.engine.transfers import (
    MessageBuffers,
    Transfer,
    exchange_of,
    transfers_of,
)
from distir.program import (
    CACHE,
    argument_roles,
    describe,
    return_op,
    updated_arguments,
)
from distir.sharding.rule import Rule


class CompiledFunctionBuilder:
    """
    Builds a compiled function from its steps, added in order. The builder assigns slots
    (indices) to values, and finds the step of each value's last use. SSA values must
    stay alive while the builder is in use.
    """

    def __init__(self, name: str, arguments: int):
        self._compiled = CompiledFunction(name, arguments, arguments)
        # Keyed by the id of a value: a function may have hundreds of thousands.
        self._slots: dict[int, int] = {}

    def bind(self, values: Sequence[SSAValue], first: int) -> None:
        """
        Assigns consecutive slots (indices of values), starting with `first`, to
        `values`.
        """
        for slot, value in enumerate(values, first):
            self._slots[id(value)] = slot

    def slots(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """
        Returns the slots (indices) of `values`. All of them must have a slot already.
        """
        slots = self._slots
        return tuple([slots[id(v)] for v in values])

    def define(self, count: int) -> int:
        """
        Reserves `count` new slots (indices of values) for the results of the next step,
        and returns the first new slot.
        """
        first = self._compiled.slots
        self._compiled.slots += count
        return first

    def add(self, step: CompiledStep) -> None:
        """Appends `step` to the function."""
        self._compiled.steps.append(step)

    @property
    def steps(self) -> list[CompiledStep]:
        """
        The steps so far. The caller may reorder them, as long as each step comes after
        the steps that define its operands.
        """
        return self._compiled.steps

    def finish(
        self,
        results: Sequence[int],
        updated: Mapping[int, int],
        kept: Mapping[int, int],
    ) -> CompiledFunction:
        """
        Returns the compiled function, whose results are the slots (indices of values)
        `results`. Determines, for each step, the values that no later step uses.
        `updated` maps the slot of a result of the program to the slot of the argument,
        of the same type, that the result replaces in the next step. `kept` maps the
        slots of values that are kept after their last use to the indices of the steps
        that free them, which are no calls.
        """
        compiled = self._compiled
        compiled.returns = tuple(results)
        share_memory(compiled.steps)
        # For each slot, the index of the last step that uses it, or -1.
        last_use = [-1] * compiled.slots
        last_calls: dict[FixedOperands, int] = {}
        for place, step in enumerate(compiled.steps):
            for slot in step.operands:
                last_use[slot] = place
            if isinstance(step, CallStep) and step.fixed is not None:
                last_calls[step.fixed] = place
        for fixed, place in last_calls.items():
            for slot in fixed.slots:
                last_use[slot] = max(last_use[slot], place)
        freed: dict[int, list[int]] = {}
        for slot, place in kept.items():
            if last_use[slot] < place:
                last_use[slot] = place
                freed.setdefault(place, []).append(slot)
        for slot in compiled.returns:
            last_use[slot] = len(compiled.steps)
        compiled.unused = tuple(i for i in range(compiled.arguments) if last_use[i] < 0)
        # If a result is a view, its source is computed into the argument's memory.
        viewed = {
            step.view_of: updated[step.results[0].slot]
            for step in (compiled.steps if updated else ())
            if isinstance(step, ComputationStep)
            and step.view_of is not None
            and not step.is_part
            and step.results[0].slot in updated
        }
        updated = {**viewed, **updated}
        for place, step in enumerate(compiled.steps):
            if updated and isinstance(step, OpStep):
                step.in_place = tuple(
                    (allocation, argument)
                    for allocation in step.results
                    if (argument := updated.get(allocation.slot)) is not None
                    and last_use[argument] <= place
                )
            used = step.operands
            fixed = step.fixed if isinstance(step, CallStep) else None
            if fixed is not None and last_calls[fixed] == place:
                used += fixed.slots
            used += tuple(freed.get(place, ()))
            dying = [s for s in used if last_use[s] == place]
            step.dying = tuple(dict.fromkeys(dying)) if len(dying) > 1 else tuple(dying)
            step.unused = tuple([s for s in step.defined if last_use[s] < 0])
        _add_look_ups(compiled.steps, last_use)
        pace(compiled.steps)
        return compiled


class Compiler:
    """
    Compiles each function once. `functions` maps the names of the module's functions to
    functions, and `device_map` gives the devices of values.

    A result of the entry function that updates an argument (`dist.updates`) is computed
    into the argument's memory, as optimizers do. There are two conditions: the op that
    computes the result is not a call, and no later op uses the argument. This also
    applies to a result that is a view of the computed value, and to the device's copy
    of a state in the host's memory. Sums and all-reduces are computed into the memory
    of an operand that no later op needs.
    """

    def __init__(self, functions: Mapping[str, FuncOp], device_map: DeviceMap):
        self.functions = functions
        self.device_map = device_map
        self._compiled: dict[str, CompiledFunction] = {}
        self._open: list[str] = []
        # Keyed by the ids of types; the values keep the types alive.
        self._places: dict[int, tuple[Attribute, Positions, Bytes]] = {}
        self._known_transfers: dict[
            object, tuple[Sequence[Attribute], tuple[Transfer, ...] | None]
        ] = {}
        self._computations = Computations(device_map)
        self._arguments = DistinctArguments(functions)
        self._buffers = MessageBuffers(device_map)

    def of(self, functions: Mapping[str, FuncOp]) -> Compiler:
        """
        Returns a compiler for `functions`, the functions of another module. Both
        compilers share the cached facts about ops and types. Both modules must stay
        alive.
        """
        found = copy(self)
        found.functions, found._compiled, found._open = functions, {}, []
        found._arguments = DistinctArguments(functions)
        return found

    def compile(self, function: FuncOp) -> CompiledFunction:
        """
        Returns the compiled form of `function`, after compiling all functions that it
        calls. Raises DistIRError if functions call each other in a cycle, or if an op
        cannot be simulated.
        """
        name = function.sym_name.data
        if name in self._open:
            cycle = " -> ".join(f"@{n}" for n in (*self._open, name))
            raise DistIRError(f"functions call each other in a cycle: {cycle}")
        if name not in self._compiled:
            self._open.append(name)
            self._compiled[name] = self._compile(function)
            self._open.pop()
        return self._compiled[name]

    def rule(self, op: Operation) -> Rule:
        """
        Returns the sharding rule of an op. Ops with the same name, types and attributes
        share one rule.
        """
        return self._computations.rule(op)

    def take(self, function: FuncOp, compiled: CompiledFunction) -> None:
        """Registers `compiled` as the compiled form of `function`."""
        self._compiled[function.sym_name.data] = compiled

    @property
    def compiled_functions(self) -> list[CompiledFunction]:
        """All functions compiled so far."""
        return list(self._compiled.values())

    def _compile(self, function: FuncOp) -> CompiledFunction:
        block = _body(function)
        self.device_map.expert_rows.update(expert_rows(function))
        build = CompiledFunctionBuilder(function.sym_name.data, len(block.args))
        build.bind(block.args, 0)
        end = return_op(function)
        for op in block.ops:
            if op is not end:
                self.add(op, build)
        returns, args = build.slots(end.operands), block.args
        updated: dict[int, int] = {}
        for i, a in updated_arguments(function).items():
            new, old = _copies_on_device(end.operands[i], args[a])
            if new.type == old.type:
                result, argument = build.slots((new, old))
                updated[result] = argument
        kept = self.kept_by_software(function, build.steps)
        compiled = build.finish(returns, updated, kept)
        compiled.given_up = _caches(function)
        compiled.mesh = self._only_mesh(block, compiled)
        return compiled

    def kept_by_software(
        self, function: FuncOp, steps: Sequence[CompiledStep]
    ) -> Mapping[int, int]:
        """
        Returns the slots (indices of values) whose memory the software keeps after
        their last use, and for each the index of the step that frees it. `steps` are
        those of `function`, or of a function with the same arguments. Steps that take
        more memory in this software are changed.
        """
        hardware = self.device_map.hardware
        if hardware.has_foreach:
            add_temporaries(steps)
        if not hardware.is_fsdp:
            return {}
        return keep_gathered(argument_roles(function), steps)

    def add(self, op: Operation, build: CompiledFunctionBuilder) -> CompiledStep:
        """
        Appends an op to a function as its next step, and returns the step. Raises
        DistIRError if the op cannot be simulated.
        """
        operands = build.slots(op.operands)
        first = build.define(len(op.results))
        build.bind(op.results, first)
        exchange = self.exchange(op, first)
        if exchange is not None:
            build.add(exchange)
        step = self.step(op, operands, first)
        build.add(step)
        return step

    def _only_mesh(self, block: Block, compiled: CompiledFunction) -> int | None:
        """
        Returns the index of the only mesh that runs the steps of a function, in arrays
        with one entry per mesh. Returns None if several meshes run the steps, or if
        arrays have one entry per device.
        """
        if not isinstance(self.device_map, UniformDeviceMap):
            return None
        values = [*block.args, *(r for op in block.ops for r in op.results)]
        names = self.device_map.mesh_names(values)
        if len(names) != 1 or any(
            isinstance(step, CallStep) and step.callee.mesh is None
            for step in compiled.steps
        ):
            return None
        return self.device_map.index[names[0]]

    def allocation(self, value: SSAValue, slot: int, op: Operation) -> Allocation:
        """
        Returns the memory of `value` in slot `slot`: its devices, and its bytes on each
        device. Raises DistIRError, naming `op`, if the value's shape is unknown.
        """
        found = self.allocation_of_type(value.type, slot, op)
        if value not in self.device_map.expert_rows:
            return found
        layout = layout_of(value)
        size = self.device_map.bytes_of(value, op)
        mesh = layout.mesh if layout else None
        return found._replace(size=self.device_map.allocated(size, mesh))

    def allocation_of_type(
        self, type_: Attribute, slot: int, op: Operation
    ) -> Allocation:
        """
        Returns the memory of a value of type `type_` in slot `slot`: its devices, and
        its bytes on each device. If the value holds rows of experts, the bytes include
        the empty rows. Raises DistIRError, naming `op`, if the type has no fixed shape.
        """
        known = self._places.get(id(type_))
        if known is None:
            device_map, layout = self.device_map, layout_of(type_)
            mesh = layout.mesh if layout else None
            size = device_map.allocated(device_map.bytes_of_type(type_, op), mesh)
            known = self._places[id(type_)] = type_, device_map.positions(mesh), size
        return Allocation(slot, known[1], known[2])

    def step(
        self, op: Operation, operands: tuple[int, ...], first: int
    ) -> CompiledStep:
        """
        Returns the step for an op. `operands` are the slots (indices of values) of its
        operands, and `first` is the slot of its first result. Raises DistIRError for
        ops that cannot be simulated.
        """
        defined = range(first, first + len(op.results))
        if type(op) is CallOp:
            callee = self.functions.get(op.callee.string_value())
            if callee is None:
                raise DistIRError(
                    f"{describe(op)} calls {op.callee}, which is not there"
                )
            inner = self.compile(callee)
            return CallStep(
                op=op,
                operands=operands,
                defined=defined,
                callee=inner,
                mesh=inner.mesh,
            )
        results = tuple(
            [
                self.allocation(r, slot, op)
                for r, slot in zip(op.results, defined, strict=True)
            ]
        )
        _refuse_other_forms(op)
        transfers = self._transfers(op)
        if transfers is None:
            return self._compute(op, operands, defined, results)
        if transfers:
            is_collective = isinstance(op, CollectiveOp)
            size = self._buffers.bytes_of(op) if is_collective else 0
            layout = layout_of(op.results[0])
            mesh = layout.mesh if layout is not None else None
            return CommunicationStep(
                op=op,
                operands=operands,
                defined=defined,
                positions=results[0].positions if size else NOWHERE,
                transfers=transfers,
                workspace=self.device_map.allocated(size, mesh) if size else 0,
                is_asynchronous=ASYNCHRONOUS in op.attributes,
                is_collective=is_collective,
                holds_operand=is_collective and not op.IN_PLACE,
                issue=max(t.issue for t in transfers),
                results=results,
                reusable=_reusable(op, operands),
            )
        # A send between the same devices takes only memory.
        return ComputationStep(
            op=op,
            operands=operands,
            defined=defined,
            positions=NOWHERE,
            results=results,
        )

    def exchange(self, op: Operation, first: int) -> CommunicationStep | None:
        """
        Returns a step for all communication of an op that communicates while it
        computes, such as a recurrent layer that gathers its state in each step. The
        communication step comes before the op's own step. Returns None if `op` does not
        communicate in this way. `first` is the slot of the op's first result.
        """
        if not isinstance(op, GatheredOp | OpaqueBase):
            return None
        layouts = [layout_of(v) for v in op.operands]
        known = [layout for layout in layouts if layout is not None]
        transfer = None
        if len(known) == len(layouts):
            transfer = exchange_of(op, known, self.device_map)
        if transfer is None:
            return None
        return CommunicationStep(
            op=op,
            operands=(),
            defined=range(first, first),
            positions=NOWHERE,
            transfers=(transfer,),
            is_asynchronous=False,
            is_collective=True,
            holds_operand=False,
            issue=transfer.issue,
            results=(),
        )

    def _transfers(self, op: Operation) -> tuple[Transfer, ...] | None:
        """
        Returns the transfers of an op, or None if the op does not communicate.

        Ops that communicate values of the same types in the same way share their
        transfers. Two kinds of op do not share transfers: the first collective of a
        bucket, which takes the time of the whole bucket, and, with a profile, a
        collective outside of buckets, whose time depends on the ops around it.
        """
        axes: tuple[str, ...] = ()
        share, is_joined = 1.0, False
        if isinstance(op, CollectiveOp):
            axes, share, is_joined = op.axis_names, op.share, op.is_joined
            alone = self.device_map.hardware.has_profiles or _begins_bucket(op)
            alone = alone or op.source in self.device_map.expert_rows
            if not axes or (alone and not is_joined):
                return transfers_of(op, self.device_map)
        elif type(op) is not SendOp:
            return transfers_of(op, self.device_map)
        # Keyed by the ids of types; the values keep the types alive.
        types = op.operands[0].type, op.results[0].type
        key = (type(op), axes, share, is_joined, *map(id, types))
        if key not in self._known_transfers:
            self._known_transfers[key] = types, transfers_of(op, self.device_map)
        return self._known_transfers[key][1]

    def _compute(
        self,
        op: Operation,
        operands: tuple[int, ...],
        defined: range,
        results: tuple[Allocation, ...],
    ) -> ComputationStep:
        name = self._computations.mesh_name(op)
        found = self._computations.of(op, name)
        share = 1.0
        if self.device_map.hardware.keeps_casts:
            share = self._arguments.share_of_runs(op)
        return ComputationStep(
            op=op,
            operands=operands,
            defined=defined,
            positions=self.device_map.positions(name),
            results=results,
            workspace=found.workspace,
            issue=found.issue * share,
            seconds=found.seconds * share,
            flops=found.flops,
            seconds_at_peak=found.seconds_at_peak,
            recomputed=1.0 if RECOMPUTED in op.attributes else found.recomputed,
            view_of=operands[0] if found.is_view else None,
            shapes=found.shapes,
            operand_bytes=found.operand_bytes,
            reusable=_reusable(op, operands),
            is_constant=not op.operands and op.name == "onnx.Constant",
        )


def _caches(function: FuncOp) -> frozenset[int]:
    """
    Returns the indices of a program's arguments that are caches of inference and that a
    result updates. The caller continues with the result, so the result may take over
    the memory of the argument.
    """
    updated = updated_arguments(function).values()
    if not updated:
        return frozenset()
    roles = argument_roles(function)
    return frozenset(argument for argument in updated if roles[argument] == CACHE)


def _copies_on_device(new: SSAValue, old: SSAValue) -> tuple[SSAValue, SSAValue]:
    """
    Returns `new`, a result, and `old`, the argument that the result updates. If both
    are in the host's memory, returns their copies on the device: the computed value and
    the fetched argument.
    """
    users = [use.operation for use in old.uses]
    if isinstance(new.owner, OffloadOp) and [type(op) for op in users] == [FetchOp]:
        return new.owner.x, users[0].results[0]
    return new, old


def _reusable(op: Operation, operands: tuple[int, ...]) -> tuple[int, ...]:
    """
    Returns the slots of the operands whose memory the result may take over if no later
    op needs the operand. Only three kinds of op have such operands: sums of floats,
    writes to caches, and collectives of a single tensor that work in place.
    """
    if CACHE_WRITES.of(op):
        return operands[:1]
    if isinstance(op, CollectiveOp) and op.IN_PLACE:
        return () if op.is_joined or _begins_bucket(op) else operands
    if op.name != "onnx.Add" or not isinstance(element_type(op.results[0]), AnyFloat):
        return ()
    pairs = zip(op.operands, operands, strict=True)
    return tuple([slot for v, slot in pairs if v.type == op.results[0].type])


def _add_look_ups(steps: Sequence[CompiledStep], last_use: Sequence[int]) -> None:
    """
    Changes `steps` so that the gradient of a look-up takes no memory of its own if the
    next step adds it to another tensor: each slice of the gradient is then added to its
    row of that tensor directly.
    """
    for place, (step, following) in enumerate(pairwise(steps), 1):
        if (
            isinstance(step, OpStep)
            and type(step.op) is GatherGradOp
            and isinstance(following, OpStep)
            and adds_by_row(step.op)
        ):
            (result,) = step.results
            others = [s for s in following.reusable if s != result.slot]
            if len(others) == len(following.reusable) - 1 == 1 and (
                last_use[result.slot] == place
            ):
                step.results = (result._replace(size=0),)
                following.reusable = tuple(others)


def _begins_bucket(op: CollectiveOp) -> bool:
    return isinstance(after := op.next_op, CollectiveOp) and after.is_joined


def _body(function: FuncOp) -> Block:
    if function.is_declaration:
        raise DistIRError(
            f"function @{function.sym_name.data} has no body and cannot be simulated"
        )
    return function.body.block


def _refuse_other_forms(op: Operation) -> None:
    if type(op) is ReshardOp:
        raise DistIRError(
            f"{describe(op)} says nothing about how the layout changes; run "
            f"lower-reshard before simulating"
        )
    if is_per_rank(op):
        raise DistIRError(
            f"{describe(op)} belongs to one rank's program; simulate the distributed "
            f"program that it was projected from"
        )
