"""Applies a schedule to a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.transform import NamedSequenceOp, YieldOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import text_attribute
from distir.dialects.registries import Registry
from distir.dialects.schedule import BY, KnobValue
from distir.errors import DistIRError, listed
from distir.gradients.call_pairs import FORWARD
from distir.planning.modules import ProgramModules
from distir.program import describe, functions, is_training_step, reachable_functions
from distir.scheduling.knobs import KnobChoice, knob_value
from distir.scheduling.rewrites.separate import OpGroup

_WHAT = "apply-schedule"


class ScheduleRun:
    """
    A schedule that is being applied.

    - `module`: the program;
    - `modules`: the modules of the model in the program, analysed again after each
      rewrite;
    - `chosen`: the values of knobs by name, as text;
    - `values`: the values of the knobs defined so far, by handle.

    A handle is an SSA value of the schedule. It stands for the paths of modules
    (`modules_of`), the indices of arguments (`parameters_of`), groups of ops
    (`groups_of`) or the value of a knob (`value_of`).
    """

    def __init__(self, module: ModuleOp, chosen: dict[str, str]):
        self.module = module
        self.modules = ProgramModules(module)
        self.chosen = chosen
        self.knobs: set[str] = set()
        self.values: dict[SSAValue, KnobValue] = {}
        self._modules: dict[SSAValue, list[str]] = {}
        self._parameters: dict[SSAValue, list[str]] = {}
        self._groups: dict[SSAValue, list[OpGroup]] = {}
        # Handles of groups that were rewritten, with the op of the schedule that did it.
        self._consumed: dict[SSAValue, str] = {}
        # Modules and parameters that rewrites removed, with the op of the schedule that did
        # it.
        self._gone: dict[str, str] = {}
        # The op that rewrote the program last, and the current one, for messages.
        self._last = self._now = ""

    def modules_of(self, handle: SSAValue) -> list[str]:
        """
        Returns the paths of the modules that `handle` stands for; "" is the whole
        model. Raises DistIRError if `handle` stands for groups of ops.
        """
        if handle not in self._modules:
            raise DistIRError(
                f"{self._now}: this takes modules, not the groups of ops that `find` gives; "
                f"name the modules themselves"
            )
        return self._modules[handle]

    def parameters_of(self, handle: SSAValue) -> list[int]:
        """
        Returns the indices of the entry function's arguments that `handle` stands for.
        """
        places = {name: i for i, name in enumerate(self.modules.names)}
        return [places[name] for name in self._parameters[handle]]

    def value_of(self, handle: SSAValue) -> KnobChoice:
        """Returns the value of the knob that `handle` stands for."""
        return knob_value(self.values[handle])

    def is_groups(self, handle: SSAValue) -> bool:
        """Whether `handle` stands for groups of ops, not for modules."""
        return handle in self._groups

    def groups_of(self, handle: SSAValue) -> list[OpGroup]:
        """
        Returns the groups of ops that `handle` stands for. Raises DistIRError if
        `handle` stands for modules, or if ops of a group are no longer in the program.
        """
        if handle not in self._groups:
            raise DistIRError(
                f"{self._now}: this takes groups of ops that `find` gives, not modules"
            )
        groups = self._groups[handle]
        alive = set(reachable_functions(self.module))
        for group in groups:
            for found in group.ops:
                if found.parent_op() not in alive:
                    raise DistIRError(
                        f"{self._now}: {describe(found)}, which was found before, is not "
                        f"in the program any more: {self._last} rewrote it, or the function "
                        f"that it was in; find groups that do not overlap, behind that line"
                    )
        return groups

    def consume(self, handle: SSAValue, op: Operation) -> None:
        """
        Records that `op` of the schedule rewrites the groups that `handle` stands for.
        Afterwards, no op can use the handle.
        """
        self._consumed[handle] = origin(op)

    def set_groups(self, handle: SSAValue, groups: Sequence[OpGroup]) -> None:
        """Records the groups of ops that `handle` stands for."""
        self._groups[handle] = list(groups)

    def set_modules(self, handle: SSAValue, scopes: Sequence[str]) -> None:
        """Records the modules that `handle` stands for, by path."""
        self._modules[handle] = list(scopes)

    def set_parameters(self, handle: SSAValue, indices: Sequence[int]) -> None:
        """Records the arguments of the entry function that `handle` stands for."""
        self._parameters[handle] = [self.modules.names[i] for i in indices]

    def rewritten(self, op: Operation) -> None:
        """Analyses the program again after `op` of the schedule has rewritten it."""
        self._last = origin(op)
        before = [*self.modules.scopes, *self.modules.names]
        self.modules = ProgramModules(self.module)
        left = {*self.modules.scopes, *self.modules.names}
        for name in before:
            if name not in left:
                self._gone[name] = origin(op)

    def _check_handles(self, op: Operation) -> None:
        """
        Raises DistIRError if an operand of `op` stands for groups, modules or
        parameters that are no longer in the program.
        """
        self._now = origin(op)
        for handle in op.operands:
            if handle in self._consumed:
                raise DistIRError(
                    f"{origin(op)}: these ops are not in the program any more: "
                    f"{self._consumed[handle]} consumed them; find those that are there now"
                )
            known = self._modules.get(handle, []) + self._parameters.get(handle, [])
            gone = next((name for name in known if name in self._gone), None)
            if gone is not None:
                raise DistIRError(
                    f"{origin(op)}: {gone!r} is not in the program any more: "
                    f"{self._gone[gone]} consumed it; match the modules that are there now"
                )

    def run(self, sequence: NamedSequenceOp) -> None:
        """
        Applies the ops of a schedule in order. Raises DistIRError if an op cannot be
        applied or a chosen knob does not exist.
        """
        args = sequence.body.block.args
        if len(args) != 1 or sequence.function_type.outputs.data:
            raise DistIRError(
                f"{_WHAT}: schedule @{sequence.sym_name.data} must take one handle, of the "
                f"whole program, and give none"
            )
        self.set_modules(args[0], [""])
        for op in sequence.body.block.ops:
            if isinstance(op, YieldOp):
                continue
            action = schedule_action.get(op.name)
            if action is None:
                raise DistIRError(
                    f"{origin(op)}: {op.name} is no op of a schedule; a schedule holds "
                    f"{listed(sorted(schedule_action.entries), 12)}"
                )
            self._check_handles(op)
            action(op, self)
        unknown = sorted(self.chosen.keys() - self.knobs)
        if unknown:
            raise DistIRError(
                f"{_WHAT}: the schedule has no knob {unknown[0]!r}; it has "
                f"{', '.join(sorted(self.knobs)) or 'none'}"
            )


ScheduleAction = Callable[[Operation, ScheduleRun], None]

schedule_action: Registry[ScheduleAction] = Registry("distir.scheduling.actions")
"""
The registry of functions that apply ops of schedules, by the names of the ops.
`@schedule_action("toy.paint")` registers a function of the op and the `ScheduleRun`. If
it raises DistIRError, the message must begin with `origin(op)`.
"""


def origin(op: Operation) -> str:
    """
    Returns the file and line in which the user wrote `op` of a schedule, for messages
    and requests. For an op that no script recorded, returns its position in the
    schedule.
    """
    written = text_attribute(op.attributes, BY)
    if written is not None:
        return written
    block, sequence = op.parent_block(), op.parent_op()
    name = sequence.sym_name.data if isinstance(sequence, NamedSequenceOp) else "?"
    position = 0 if block is None else 1 + block.get_operation_index(op)
    return f"@{name}, op {position} ({op.name})"


def apply_schedule(module: ModuleOp, entry: str, chosen: Sequence[str] = ()) -> None:
    """
    Applies the schedule called `entry` to the program in the same module, and removes
    all schedules from the module. `chosen` are values of knobs, each as `NAME=VALUE`.
    Raises DistIRError if the schedule cannot be applied; the program may then be partly
    changed.
    """
    sequences = [op for op in module.body.block.ops if isinstance(op, NamedSequenceOp)]
    found = [op for op in sequences if op.sym_name.data == entry]
    if not found:
        known = listed([f"@{op.sym_name.data}" for op in sequences]) or "none"
        raise DistIRError(
            f"{_WHAT}: the module has no transform.named_sequence @{entry}; it has {known}"
        )
    for op in sequences:
        op.detach()
    run = ScheduleRun(module, _chosen(chosen))
    _check_sequential(run)
    run.run(found[0])


def _check_sequential(run: ScheduleRun) -> None:
    entry = run.modules.entry
    if any(layout_of(type_) is not None for type_ in entry.function_type.inputs):
        raise DistIRError(
            f"{_WHAT}: the program is distributed already; apply the schedule to the "
            f"sequential one"
        )
    known = functions(run.module).values()
    if is_training_step(entry) or any(FORWARD in f.attributes for f in known):
        raise DistIRError(
            f"{_WHAT}: the program is a training step already; apply the schedule before "
            f"`differentiate`"
        )


def _chosen(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise DistIRError(
                f"{_WHAT}: cannot read the choice {text!r}; write NAME=VALUE, once for each "
                f"knob"
            )
        found[name] = value
    return found
