"""
`add-step-settings`: turns learning rate and weight decay into arguments of a training step.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.train_ops.optimizers import STEP_SETTINGS
from distir.errors import one_of
from distir.passes.options import DistIRPass
from distir.transforms.step_settings import add_step_settings


@dataclass(frozen=True)
class AddStepSettingsPass(DistIRPass):
    """
    Turns hyper-parameters of the optimizer into arguments of the program, so that each
    step can have other values. The arguments are scalars with the role `setting`;
    `dist.default` holds the optimizer's previous value. A distributed program gets one
    argument for each mesh. DistIR makes the PyTorch packages of training steps from
    programs with these arguments.

    - `settings`: the hyper-parameters: `learning_rate`, `weight_decay` or both.
    """

    name = "add-step-settings"

    settings: tuple[str, ...] = STEP_SETTINGS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for setting in self.settings:
            one_of("setting of a step", setting, STEP_SETTINGS, self.name)
        add_step_settings(op, self.settings)
