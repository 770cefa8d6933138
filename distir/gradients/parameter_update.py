"""
The update of one parameter while an optimizer adds it to a training step: the inputs of
the update, and the optimizer's states, which persist from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    TensorType,
    bf16,
    f32,
)
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist_attributes import INITIAL, NAME, OF, REPACKED, UPDATES
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.registries import Registry
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.optimizers import SquareSumOp
from distir.dialects.train_ops.quantized_states import (
    CODE,
    DequantizeStateOp,
    QuantizeStateOp,
)
from distir.errors import DistIRError
from distir.gradients.options import OptimizerOptions
from distir.gradients.rule import GradientBuilder, shape
from distir.gradients.training_step import TrainingStep

Result = tuple[SSAValue, dict[str, Attribute]]
"""A result of the training step, and its attributes."""

Gradient = tuple[SSAValue, SSAValue]
"""A parameter and its gradient."""

BLOCK = 64
"""
The number of elements that share a scale in states of 8 bits. It is small, so that
parts of a parameter on devices hold whole blocks.
"""

LEAST_NARROW = 4096
"""
Parameters of fewer elements have states in the type that they are updated in: narrower
ones would save little, and cost a conversion each.
"""


def updated(value: SSAValue, name: str) -> Result:
    """
    Returns `value` as a result of the step. The result becomes the argument called
    `name` in the next step.
    """
    return value, {NAME: NAME.attr(name), UPDATES: UPDATES.attr(name)}


@dataclass
class ParameterUpdate:
    """
    The update of the parameter `name`, added to `step`.

    - `parameter`: the value to update: the parameter, or its f32 master copy;
    - `gradient`: the parameter's gradient, which may have fewer bits;
    - `counter`: the number of steps done so far, an i64 scalar;
    - `defaults`: the optimizer's settings for options that the user did not set;
    - `states`: the results of the step that become states of the next step.
    """

    step: TrainingStep
    name: str
    parameter: SSAValue
    gradient: SSAValue
    counter: SSAValue | None
    options: OptimizerOptions
    defaults: Mapping[str, float]
    states: list[Result] = field(default_factory=list[Result])
    _kept: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    """The element type in which each state is stored, by its kind."""

    @property
    def build(self) -> GradientBuilder:
        """The builder that appends ops at the end of the training step."""
        return GradientBuilder(self.step.insert, None)

    @property
    def count(self) -> SSAValue:
        """
        The number of steps done so far. The optimizer must be registered with
        `counts_steps`.
        """
        assert self.counter is not None
        return self.counter

    @property
    def decay(self) -> dict[str, float]:
        """The learning rate and the weight decay, as properties of an op."""
        return {
            "learning_rate": self.options.learning_rate,
            "weight_decay": self.number("weight_decay"),
        }

    @property
    def betas(self) -> dict[str, float]:
        """The decay rates of running means, as properties of an op."""
        return {"beta1": self.number("beta1"), "beta2": self.number("beta2")}

    def number(self, name: str) -> float:
        """Returns the option called `name`, or the optimizer's default for it."""
        given: float | None = getattr(self.options, name)
        return self.defaults.get(name, 0.0) if given is None else given

    def state(
        self, kind: str, *, signed: bool = True, sizes: tuple[int, ...] | None = None
    ) -> SSAValue:
        """
        Adds the state `<name>.<kind>` and returns its value, in the type in which the
        parameter is updated. The option `state_dtype` determines the type in which the
        state is stored. `signed` tells whether the state may be negative. `sizes` is
        the shape of the state, if it differs from the parameter's shape. A state of
        another shape is small, and is stored in 32 bits or more.
        """
        if sizes is not None:
            wide = f32 if self._is_narrow else element_type(self.parameter)
            self._kept[kind] = wide
            return self._argument(kind, TensorType(wide, sizes), is_alike=False)
        type_ = self._type
        stored = self._kept[kind] = self._stored
        if stored == CODE:
            own = shape(self.parameter)
            codes = self._argument(kind, TensorType(CODE, own))
            scales = TensorType(f32, (*own[:-1], own[-1] // BLOCK))
            scale = self._argument(f"{kind}.scale", scales, is_alike=False)
            op = DequantizeStateOp(
                codes, scale, block=BLOCK, signed=signed, state=type_
            )
            return self.build.result(op)
        value = self._argument(kind, TensorType(stored, shape(self.parameter)))
        if stored == element_type(self.parameter):
            return value
        to = onnx_element_type(element_type(self.parameter))
        return self.build.onnx("Cast", value, to=to)

    def keep(self, kind: str, value: SSAValue, *, signed: bool = True) -> None:
        """
        Makes `value` the state `<name>.<kind>` of the next step. `signed` tells whether
        the state may be negative.
        """
        name = f"{self.name}.{kind}"
        stored = self._kept[kind]
        if stored == element_type(value):
            self.states.append(updated(value, name))
        elif stored == CODE:
            op = QuantizeStateOp(value, block=BLOCK, signed=signed)
            self.build.add(op)
            self.states.append(updated(op.codes, name))
            self.states.append(updated(op.scales, f"{name}.scale"))
        else:
            to = onnx_element_type(stored)
            self.states.append(updated(self.build.onnx("Cast", value, to=to), name))

    def squares(self, value: SSAValue) -> SSAValue:
        """Returns the sum of the squares of all elements of `value`."""
        return self.build.result(SquareSumOp(value))

    def check_one_tensor(self) -> None:
        """
        Raises DistIRError if the parameter holds several tensors of the source model,
        because the optimizer needs a separate norm for each of these tensors.
        """
        if self.name in self.step.repacked:
            raise DistIRError(
                f"differentiate: {self.options.optimizer} needs norms of whole "
                f"parameters, and {self.name!r} holds several that were merged; leave "
                f"out the merge, or choose adamw"
            )

    @property
    def _type(self) -> TensorType[Any]:
        return TensorType(element_type(self.parameter), shape(self.parameter))

    @property
    def _is_narrow(self) -> bool:
        return isinstance(element_type(self.parameter), Float16Type | BFloat16Type)

    @property
    def _stored(self) -> Attribute:
        """The element type of states that have the parameter's shape."""
        sizes = shape(self.parameter)
        if prod(sizes) >= LEAST_NARROW:
            if self.options.state_dtype == "bf16":
                return bf16
            if self.options.state_dtype == "int8" and sizes[-1] % BLOCK == 0:
                return CODE
        return element_type(self.parameter)

    def _argument(
        self, kind: str, type_: Attribute, *, is_alike: bool = True
    ) -> SSAValue:
        """
        Adds the argument `<name>.<kind>` of type `type_` and returns it. `is_alike`
        tells whether the argument has the parameter's shape.
        """
        own: dict[str, Attribute] = {OF: OF.attr(self.name)}
        repacked = self.step.repacked.get(self.name)
        if repacked is not None and is_alike:
            own[REPACKED] = repacked.renamed(f".{kind}").attribute
        return self.step.argument(type_, "state", f"{self.name}.{kind}", own)


def with_master(update: ParameterUpdate) -> None:
    """
    Makes `update` work on an f32 copy of its 16-bit parameter. The copy is a state.
    """
    own: dict[str, Attribute] = {
        OF: OF.attr(update.name),
        INITIAL: INITIAL.attr("copy"),
    }
    repacked = update.step.repacked.get(update.name)
    if repacked is not None:
        own[REPACKED] = repacked.renamed(".master").attribute
    type_ = TensorType(f32, shape(update.parameter))
    update.parameter = update.step.argument(
        type_, "state", f"{update.name}.master", own
    )


@dataclass(frozen=True)
class Optimizer:
    """
    An optimizer. `update` adds a step of one parameter and returns the new parameter.
    `defaults` are the default settings, by the names of options. `counts_steps` tells
    whether the optimizer needs the number of steps done so far.
    """

    update: Callable[[ParameterUpdate], SSAValue]
    defaults: Mapping[str, float]
    counts_steps: bool = True


_REGISTRY: Registry[Optimizer] = Registry("distir.gradients.optimizers")


def optimizer(
    name: str, *, counts_steps: bool = True, **defaults: float
) -> Callable[
    [Callable[[ParameterUpdate], SSAValue]], Callable[[ParameterUpdate], SSAValue]
]:
    """
    Returns a decorator for the function that adds a step of an optimizer. The decorator
    registers the function under `name`.
    """

    def register(
        update: Callable[[ParameterUpdate], SSAValue],
    ) -> Callable[[ParameterUpdate], SSAValue]:
        _REGISTRY(name)(Optimizer(update, defaults, counts_steps))
        return update

    return register


def optimizer_called(name: str) -> Optimizer:
    """Returns the optimizer called `name`, which must be one of `OPTIMIZERS`."""
    return _REGISTRY.entries[name]
