"""
Loss scaling, which keeps gradients of 16 bits from vanishing and overflowing.

The backward pass differentiates the loss times a power of two, and the gradients are
then divided by this power. If a gradient is not finite, the step only halves the power
and leaves the parameters unchanged. After many finite steps in a row, the power is
doubled, as in `torch.amp.GradScaler`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType, f32, i64
from xdsl.ir import SSAValue

from distir.dialects.dist_attributes import LOSS_SCALE
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.checks import accumulation_type
from distir.gradients.clipping import sum_of_squares
from distir.gradients.parameter_update import Gradient, Result, updated
from distir.gradients.rule import GradientBuilder
from distir.gradients.training_step import TrainingStep

EXPONENT = "optimizer.loss_scale"
"""
The name of the state that holds the exponent of the power minus `FIRST`. The state thus
starts at 0.
"""

STEPS = "optimizer.loss_scale_steps"
"""The name of the state that counts the finite steps since the power last changed."""

FIRST, LAST = 16, 24
"""The initial and the largest exponent of the power. The smallest exponent is 0."""

INTERVAL = 2000
"""The number of finite steps in a row after which the power is doubled."""


class LossScaling:
    """
    Loss scaling in a training step. The class adds the states of the scaling to the
    step, scales the loss, and unscales the gradients.
    """

    def __init__(self, step: TrainingStep):
        self._step = step
        kinds = {EXPONENT: "exponent", STEPS: "steps"}
        self._exponent, self._steps = (
            step.argument(
                TensorType(i64, []), "state", name, {LOSS_SCALE: LOSS_SCALE.attr(kind)}
            )
            for name, kind in kinds.items()
        )
        build = self._build = GradientBuilder(step.insert, None)
        exponent = build.onnx("Add", self._exponent, build.constant(np.int64(FIRST)))
        exponent = build.onnx("Cast", exponent, to=onnx_element_type(f32))
        self._scale = build.onnx("Pow", build.constant(np.float32(2)), exponent)

    def gradient_of(self, loss: SSAValue) -> SSAValue:
        """
        Returns the gradient of the loss with which the backward pass starts: the power
        of two.
        """
        return self._build.cast(self._scale, loss)

    def unscaled(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """
        Returns the gradients divided by the power of two, in f32 (f64 gradients in
        f64).
        """
        found: list[Gradient] = []
        for parameter, gradient in gradients:
            wide, type_ = gradient, accumulation_type(gradient)
            if element_type(gradient) != type_:
                to = onnx_element_type(type_)
                wide = self._build.onnx("Cast", gradient, to=to)
            scale = self._build.cast(self._scale, wide)
            found.append((parameter, self._build.onnx("Div", wide, scale)))
        return found

    def results(
        self, gradients: Sequence[SSAValue], results: Sequence[Result]
    ) -> list[Result]:
        """
        Returns the results of the step: `results`, and the new states of the scaling.
        If a gradient is not finite, each result that updates an argument has the
        argument's old value.
        """
        build = self._build
        total = sum_of_squares(gradients, build)
        largest = build.scalar(float(np.finfo(np.float32).max), total)
        finite = build.onnx("LessOrEqual", total, largest)
        kept = [
            (
                result
                if (argument := self._step.replaced(result)) is None
                else (build.onnx("Where", finite, result[0], argument), result[1])
            )
            for result in results
        ]
        return [*kept, *self._states(finite)]

    def _states(self, finite: SSAValue) -> list[Result]:
        build = self._build
        zero, one = build.constant(np.int64(0)), build.constant(np.int64(1))
        done = build.onnx("Add", self._steps, one)
        long = build.onnx("GreaterOrEqual", done, build.constant(np.int64(INTERVAL)))
        up = build.onnx("Where", long, one, zero)
        change = build.onnx("Where", finite, up, build.constant(np.int64(-1)))
        exponent = build.onnx("Add", self._exponent, change)
        lowest, highest = (
            build.constant(np.int64(bound)) for bound in (-FIRST, LAST - FIRST)
        )
        exponent = build.onnx("Min", build.onnx("Max", exponent, lowest), highest)
        ended = build.onnx("Or", long, build.onnx("Not", finite))
        steps = build.onnx("Where", ended, zero, done)
        return [updated(exponent, EXPONENT), updated(steps, STEPS)]
