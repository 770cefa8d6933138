"""
`differentiate`: turns a forward program into its gradients or a whole training step.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from distir.dialects.dist_attributes import DOUBT, FROZEN, NAME, ROLE
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.errors import DistIRError, listed, one_of
from distir.gradients.gradient_types import GradientTypes
from distir.gradients.loss_scaling import LossScaling
from distir.gradients.losses import (
    add_gradients_of_results,
    add_loss,
    described,
    prediction_of,
)
from distir.gradients.options import (
    DROPOUT_MASKS,
    GRADIENT_DTYPES,
    LOSS_SCALINGS,
    LOSSES,
    MUON_SCALES,
    OPTIMIZERS,
    ORTHOGONALIZE_DTYPES,
    OUTSIDE,
    STATE_DTYPES,
    StepOptions,
)
from distir.gradients.parameter_update import Result
from distir.gradients.reverse import ReverseMode
from distir.gradients.rule import GradientBuilder, is_differentiable, shape
from distir.gradients.training_step import TrainingStep
from distir.gradients.updates import add_updates
from distir.passes.batch_statistics import BatchStatisticsPass
from distir.passes.options import DistIRPass
from distir.passes.train_dropout import TrainDropoutPass
from distir.program import BATCH_ROLES, LOSS, argument_roles, erase_dead
from distir.program.doubts import reason
from distir.program.functions import erase_unreachable
from distir.transforms.dropout import with_masks


@dataclass(frozen=True)
class DifferentiatePass(StepOptions, DistIRPass):
    """
    Makes a forward program compute a loss, its gradients and the optimizer's update.

    The entry function becomes `(inputs, labels, parameters, states) -> (loss, new
    parameters, new states)`. A result that replaces an argument in the next step has
    the attribute `dist.updates`. Batch normalisation and dropout in training mode are
    rewritten as in `batch-statistics` and `train-dropout`. Each called function becomes
    a forward and a backward function, so that layers stay outlined (see
    `distir.gradients.reverse`).

    - `loss`: `cross_entropy` of logits `[..., V]` and integer labels `[...]`, `mse`, or
      `none` if the program's result is the scalar loss. With `outside`, the caller
      computes the loss: the program keeps its results and takes their gradients as
      further labels (`dist.gradient_of`); only with the optimizer `none`.
    - `output`: the index of the result from which the loss is computed.
    - `ignore_index`: the label of positions that a cross-entropy leaves out, such as
      padding; by default every label is a class.
    - `optimizer`: `sgd`, `adam`, `adamw`, `adafactor`, `lamb`, `lion` or `muon`. With
      `none` the program returns the gradients, with the role `gradient` and the names
      `<parameter>.gradient`. `learning_rate`, `momentum`, `beta1`, `beta2`, `epsilon`,
      `weight_decay`: as in PyTorch. `clip`: the largest global norm of the gradients; 0
      for no limit.
    - `relative_step`: whether steps of `adafactor` are proportional to the magnitude of
      each parameter and become shorter with time, as in PyTorch. The learning rate is
      then an upper bound.
    - `muon_scale`: the length of steps of `muon`: as in `adamw` (`match_rms_adamw`), or
      as in the first publication (`original`). `orthogonalize_dtype`: the type of the
      products of `muon`, `bf16` or the type of the `parameter`. `by_adamw`: names of
      parameters, or patterns with `*`, that `adamw` updates, in addition to all
      parameters that are not matrices of products.
    - `state_dtype`: the type of stored states with the parameter's shape: the type in
      which the parameter is updated (`parameter`), `bf16`, or `int8`: codes of 8 bits
      with a scale for each block of 64 elements of the last dimension. States of fewer
      than 4096 elements keep the wider type, and with `int8` also states whose last
      dimension the blocks do not divide.
    - `master_weights`: whether f16 and bf16 parameters have an f32 copy that the
      optimizer updates. Without it, the optimizer updates the parameters, and its
      states have their type.
    - `inputs`: the names of inputs and labels whose gradients the program returns too,
      with their layouts; only with the optimizer `none`.
    - `dropout_masks`: with `drawn`, the backward pass draws the masks again, and no
      memory holds them; with `stored`, the forward pass keeps them, one byte for each
      array element. The masks are the same.
    - `gradient_dtype`: with `parameter`, a gradient has the element type of its
      parameter; with `f32`, gradients of f16 and bf16 parameters are added up and
      reduced in f32, and each contribution is cast right after its computation.
    - `loss_scaling`: with `dynamic`, the backward pass differentiates the loss times a
      power of two, so that gradients in f16 do not underflow. If a gradient overflows,
      the step changes only this power, which is a state (see
      `distir.gradients.loss_scaling`). With `none`, there is no scaling.
    - `fused_attention`: whether attention with dropout of its probabilities becomes one
      op, as with `attention` of `train-dropout`. With `stored` masks it stays written
      out.
    - `dropout_seed`: the seed of the random numbers of dropout, 32 bits.
    - `batch_norm_devices`, `batch_norm_micro_batches`: as `devices` and `micro_batches`
      of `batch-statistics`.
    """

    name = "differentiate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        one_of("loss", self.loss, LOSSES, self.name)
        one_of("optimizer", self.optimizer, OPTIMIZERS, self.name)
        one_of("scale of muon", self.muon_scale, MUON_SCALES, self.name)
        types = ORTHOGONALIZE_DTYPES
        one_of("type of products", self.orthogonalize_dtype, types, self.name)
        one_of("type of states", self.state_dtype, STATE_DTYPES, self.name)
        one_of("way to have masks", self.dropout_masks, DROPOUT_MASKS, self.name)
        one_of("type of gradients", self.gradient_dtype, GRADIENT_DTYPES, self.name)
        one_of("loss scaling", self.loss_scaling, LOSS_SCALINGS, self.name)
        parts = (self.batch_norm_devices, self.batch_norm_micro_batches)
        BatchStatisticsPass(*parts).apply(ctx, op)
        fused = self.fused_attention and self.dropout_masks == "drawn"
        TrainDropoutPass(self.dropout_seed, fused).apply(ctx, op)
        if self.dropout_masks == "stored":
            with_masks(op)
        step = TrainingStep(op)
        roles = argument_roles(step.function)
        parameters = [
            arg
            for arg, role in zip(step.block.args, roles, strict=True)
            if role == "parameter" and FROZEN not in step.attributes[arg.index]
        ]
        if not parameters and not self.inputs:
            frozen = ' that is not "dist.frozen"' if "parameter" in roles else ""
            raise DistIRError(
                "differentiate: the program has no argument with dist.role "
                f'"parameter"{frozen}, so there is nothing to train'
            )
        reverse = ReverseMode(op, GradientTypes(wide=self.gradient_dtype == "f32"))
        # Labels of a loss that is yet to be added are not there: nothing else reads them.
        sources = parameters + self._inputs(step)
        active = reverse.active(step.block, sources)
        pairs = reverse.with_forward_calls(step.block, active)
        scaling: LossScaling | None = None
        gradients: dict[SSAValue, SSAValue] = {}
        results: list[Result] = []
        if self.loss == OUTSIDE:
            self._check_outside()
            self._check_inputs(step, self._inputs(step))
            active = reverse.active(step.block, sources)
            gradients = add_gradients_of_results(step, active)
            results += step.outputs()
        else:
            loss = self._loss(step)
            sources = parameters + self._inputs(step)
            self._check_inputs(step, sources[len(parameters) :])
            active = reverse.active(step.block, sources)
            self._check_depends(step, loss, active)
            scaling = LossScaling(step) if self.loss_scaling == "dynamic" else None
            gradients[loss] = _first_gradient(step, loss, scaling)
            results.append((loss, {ROLE: ROLE.attr(LOSS), NAME: NAME.attr("loss")}))
        ops = [o for o in step.block.ops if not isinstance(o, ReturnOp)]
        reverse.backward(ops, active, pairs, gradients, step.insert)
        found = [(v, gradients[v]) for v in sources if v in gradients]
        check_no_doubt(step, [v for v, _ in found])
        if scaling is None:
            results += add_updates(step, found, self)
        else:
            found = scaling.unscaled(found)
            updates = add_updates(step, found, self)
            results += scaling.results([g for _, g in found], updates)
        step.finish([*results, *step.kept()])
        erase_dead(step.block)
        erase_unreachable(op)

    def _loss(self, step: TrainingStep) -> SSAValue:
        """
        Adds the loss to the program and returns it. Raises DistIRError if the loss does
        not fit the program's result, or is not a scalar.
        """
        result = prediction_of(step, self.output)
        loss = add_loss(self.loss, self.output, result, step, self.ignore_index)
        if shape(loss) != ():
            raise DistIRError(
                f"differentiate: the loss must be a scalar, but "
                f"{described(self.output, loss)} has type {loss.type}; choose a loss, or "
                f"another output"
            )
        return loss

    def _check_depends(
        self, step: TrainingStep, loss: SSAValue, active: Container[SSAValue]
    ) -> None:
        """
        Raises DistIRError if the loss depends on no parameter or input. `active` holds
        all values that depend on a parameter or an input.
        """
        if loss not in active:
            result = prediction_of(step, self.output)
            wanted = "parameter or input" if self.inputs else "parameter"
            raise DistIRError(
                f"differentiate: the loss does not depend on any {wanted}: "
                f"{described(self.output, result)}, of type {result.type}, is no float "
                f"that is computed from one; choose another output"
            )

    def _check_outside(self) -> None:
        """
        Raises DistIRError if an option does not suit a loss that the caller computes.
        """
        if self.optimizer != "none":
            raise DistIRError(
                f"differentiate: with the loss outside, the program gives gradients (the "
                f"optimizer none), and the optimizer is {self.optimizer}; choose none, or "
                f"another loss"
            )
        if self.loss_scaling != "none":
            raise DistIRError(
                "differentiate: a program can scale the loss that it computes itself, and "
                "the loss is outside; choose the loss scaling none, or another loss"
            )
        if self.ignore_index is not None:
            raise DistIRError(
                "differentiate: ignore_index is a class of cross_entropy, and the loss is "
                "outside; leave it out"
            )

    def _inputs(self, step: TrainingStep) -> list[SSAValue]:
        """
        Returns the arguments of the program whose names are in the option `inputs`.
        """
        return [
            arg
            for arg, name in zip(step.block.args, step.names, strict=True)
            if name in self.inputs
        ]

    def _check_inputs(self, step: TrainingStep, found: Sequence[SSAValue]) -> None:
        """
        Raises DistIRError if the option `inputs` is used with an optimizer, or names an
        argument that has no gradient, or that is neither an input nor a label of the
        program. `found` holds the named arguments.
        """
        if self.inputs and self.optimizer != "none":
            raise DistIRError(
                f"differentiate: gradients of inputs are for the optimizer none, and it is "
                f"{self.optimizer}; leave out inputs, or choose that"
            )
        names: dict[SSAValue, str] = dict(zip(step.block.args, step.names, strict=True))
        named = {names[value]: value for value in found}
        roles = argument_roles(step.function)
        for name in self.inputs:
            value = named.get(name)
            if value is None or roles[step.names.index(name)] not in BATCH_ROLES:
                raise DistIRError(
                    f"differentiate: the program has no input or label {name!r}, of which "
                    f"a gradient is wanted; leave it out of inputs"
                )
            if not is_differentiable(value):
                raise DistIRError(
                    f"differentiate: {name!r} has type {value.type}, of which there is no "
                    f"gradient; leave it out of inputs"
                )


def _first_gradient(
    step: TrainingStep, loss: SSAValue, scaling: LossScaling | None
) -> SSAValue:
    """
    Returns the gradient of the loss, with which the backward pass starts: 1, or the
    factor of loss scaling.
    """
    if scaling is not None:
        return scaling.gradient_of(loss)
    assert isinstance(loss.type, TensorType)
    ones = np.ones((), numpy_dtype(loss.type.element_type))
    return GradientBuilder(step.insert, None).constant(ones)


def check_no_doubt(step: TrainingStep, trained: Sequence[SSAValue]) -> None:
    """
    Raises DistIRError if one of the `trained` arguments has the attribute `dist.doubt`,
    a reason against training it. The message explains the reason.
    """
    doubts: dict[str, list[str]] = {}
    for arg, name in zip(step.block.args, step.names, strict=True):
        doubt = DOUBT.of(step.attributes[arg.index])
        if doubt and arg in trained:
            doubts.setdefault(doubt, []).append(name)
    for doubt, names in doubts.items():
        raise DistIRError(
            f"differentiate: cannot train {listed(names)}: {reason(doubt)}"
        )
