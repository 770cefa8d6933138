"""
Turns hyper-parameters that change from step to step into arguments of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, ModuleOp, StringAttr, TensorType, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.dist_attributes import DEFAULT, NAME, ROLE, SETTING
from distir.dialects.train_ops.optimizers import STEP_SETTINGS, UpdateOp
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    argument_names,
    describe,
    entry_function,
    free_name,
    reachable_functions,
    set_argument_attributes,
)

SETTING_ROLE = "setting"
"""The role of an argument that is a hyper-parameter of the step."""


def _updates(module: ModuleOp) -> tuple[list[UpdateOp], list[UpdateOp]]:
    """
    Returns the updates in the entry function of a program, and the updates in all other
    functions.
    """
    entry = entry_function(module)
    own: list[UpdateOp] = []
    others: list[UpdateOp] = []
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            if isinstance(op, UpdateOp):
                (own if function is entry else others).append(op)
    return own, others


def has_step_settings(module: ModuleOp) -> bool:
    """
    Whether the program has updates, all of them in the entry function. Only then can
    `add_step_settings` turn their hyper-parameters into arguments.
    """
    own, others = _updates(module)
    return any(op.step_setting_names for op in own) and not others


def add_step_settings(
    module: ModuleOp, settings: Sequence[str] = STEP_SETTINGS
) -> None:
    """
    Turns the hyper-parameters named in `settings` of all updates into arguments of the
    entry function. Updates on the same mesh with the same value of a hyper-parameter
    share an argument, and the value becomes the argument's default. Hyper-parameters
    that are already arguments stay. Raises DistIRError if an update is not in the entry
    function.
    """
    entry = entry_function(module)
    own, others = _updates(module)
    if others:
        raise DistIRError(
            f"{describe(others[0])} is not in @{entry.sym_name.data}, where an update must "
            f"be to take a learning rate that differs from step to step; run inline-calls "
            f"first"
        )
    arguments = _Arguments(entry)
    for op in own:
        given = dict(op.given_settings)
        for name in settings:
            if name in op.step_setting_names and name not in given:
                given[name] = arguments.of(op, name)
        if len(given) > len(op.given_settings):
            op.give_settings(given)
    arguments.finish()


class _Arguments:
    """
    The arguments of an entry function, to which arguments for hyper-parameters are
    added.
    """

    def __init__(self, entry: FuncOp):
        self.entry = entry
        self.attributes = argument_attributes(entry)
        self.names = argument_names(entry)
        for attributes, name in zip(self.attributes, self.names, strict=True):
            attributes.setdefault(NAME, StringAttr(name))
        self.made: dict[tuple[str, str, float], SSAValue] = {}

    def of(self, op: UpdateOp, setting: str) -> SSAValue:
        """
        Returns the argument for the hyper-parameter `setting` of an update. If no
        argument exists for the update's mesh and value, a new argument is made.
        """
        layout, value = layout_of(op.operands[0]), op.settings[setting]
        key = setting, "" if layout is None else layout.mesh, value
        if key not in self.made:
            type_ = TensorType(f64, [])
            if layout is not None:
                type_ = with_layout(type_, Layout(layout.mesh))
            self.made[key] = self._new(type_, setting, value)
        return self.made[key]

    def _new(self, type_: TensorType, setting: str, value: float) -> SSAValue:
        block = self.entry.body.block
        argument = block.insert_arg(type_, len(block.args))
        name = free_name(self.names, setting)
        argument.name_hint = name
        self.names.append(name)
        own: dict[str, Attribute] = {
            ROLE: ROLE.attr(SETTING_ROLE),
            NAME: NAME.attr(name),
            SETTING: SETTING.attr(setting),
            DEFAULT: FloatAttr(value, f64),
        }
        self.attributes.append(own)
        return argument

    def finish(self) -> None:
        """Updates the type and the argument attributes of the function."""
        if self.made:
            self.entry.update_function_type()
            set_argument_attributes(self.entry, self.attributes)
