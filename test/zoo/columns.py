"""
The columns of the zoo's matrix: what is done with a model, and compared with PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.context import Context

import distir
from distir.facade.model_program import ModelProgram
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
    updated_arguments,
)
from distir.tools.arguments.program import arguments_by_name, whole_arguments
from zoo.model import Family, ZooModel
from zoo.shares import Shares, shares_over

Arrays = dict[str, npt.NDArray[Any]]

FORWARD: dict[str, dict[str, Any]] = {
    "import": {},
    "d2 t2": dict(d=2, t=2),
    "p2 k2": dict(p=2, k=2),
}
TRAINING: dict[str, dict[str, Any]] = {
    "step": {},
    "step d2 t2": dict(d=2, t=2),
    "step zero 3": dict(d=2, zero=3),
    "step p2 k2": dict(p=2, k=2),
}
COLUMNS = (*FORWARD, *TRAINING)

TOLERANCE = 1e-4
"""
The largest difference from PyTorch that is allowed, relative to the largest number of a
result (or, of results, 1): both compute with 32-bit floats, in different orders.
"""

DOUBLE_TOLERANCE = 1e-6
"""The same for families that compute with 64-bit floats."""


class DiffersError(Exception):
    """What a program computes is not what PyTorch computes."""


@dataclass(frozen=True)
class Step:
    """The loss of a training step, and the gradients by the names of parameters."""

    loss: float
    gradients: Arrays


@dataclass
class Visit:
    """A family that is imported, distributed and trained; each part is made once."""

    family: Family

    @cached_property
    def model(self) -> ZooModel:
        """The module with its inputs."""
        return self.family.made()

    @cached_property
    def _labels(self) -> torch.Tensor | None:
        return self.model.labels()

    @cached_property
    def _forward(self) -> ModelProgram:
        return self._imported({})

    def _imported(self, options: dict[str, Any]) -> ModelProgram:
        model = self.model
        model.mode("training" in options)
        try:
            return distir.import_model(model.module, (), dict(model.inputs), **options)
        finally:
            model.mode(False)

    def _made_step(self, micro_batches: int) -> ModelProgram:
        """Returns the step, whose batch norm has the statistics of such micro-batches."""
        options: dict[str, Any] = dict(loss=self.model.loss)
        # The momentum after the first step is the gradient.
        options |= dict(optimizer="sgd", learning_rate=0.1, momentum=0.9)
        if not self.model.normalises:  # then the forward of a step is the forward
            step = self._forward.module.clone()
            options["output"] = self.model.output
            DifferentiatePass(**options).apply(Context(), step)
            return self._forward.with_module(step)
        options |= dict(training=True, loss_output=self.model.output)
        if micro_batches > 1:
            options["batch_norm_micro_batches"] = micro_batches
        return self._imported(options)

    @cached_property
    def _steps(self) -> dict[int, ModelProgram]:
        return {}

    def _step(self, micro_batches: int) -> ModelProgram:
        if micro_batches not in self._steps:
            self._steps[micro_batches] = self._made_step(micro_batches)
        return self._steps[micro_batches]

    def run(self, column: str) -> None:
        """
        Does what a column says. Raises DistIRError for what is refused, and DiffersError.
        """
        if column in FORWARD:
            program = distributed(self._forward, FORWARD[column])
            self._compare_results(program)
            return
        options = TRAINING[column]
        micro_batches = options.get("k", 1) if self.model.normalises else 1
        program = distributed(self._step(micro_batches), options)
        self._compare_steps(program, micro_batches)

    def shares(self) -> Shares:
        """Returns how much of the model d2 t2 splits over t."""
        program = distributed(self._forward, FORWARD["d2 t2"])
        return shares_over(program.module, "t")

    def _results(self, program: ModelProgram, given: Mapping[str, Any]) -> list[Any]:
        values = whole_arguments(
            program.module, program.name, program.weights, dict(given), 0
        )
        for name, role in self._roles(program):
            if role == "state":
                values[name] = np.zeros_like(values[name])
        return run_program(program.module, arguments_by_name(program.module, values))

    @staticmethod
    def _roles(program: ModelProgram) -> list[tuple[str, str]]:
        function = entry_function(program.module)
        return list(
            zip(argument_names(function), argument_roles(function), strict=True)
        )

    @cached_property
    def _inputs(self) -> Arrays:
        return {name: value.numpy() for name, value in self.model.inputs.items()}

    def _given(self, program: ModelProgram) -> Arrays:
        """Returns the inputs that a program has; others have no effect on its results."""
        taken = {name for name, role in self._roles(program) if role == "input"}
        given = {n: v for n, v in self._inputs.items() if n in taken}
        if missing := taken - given.keys():
            raise DiffersError(
                f"the program takes {sorted(missing)}, the module does not"
            )
        return given

    @cached_property
    def _expected_results(self) -> list[npt.NDArray[Any]]:
        with torch.no_grad():
            return [value.numpy() for value in self.model.results()]

    def _compare_results(self, program: ModelProgram) -> None:
        found = self._results(program, self._given(program))
        expected = self._expected_results
        if len(found) != len(expected):
            raise DiffersError(f"{len(found)} results, PyTorch has {len(expected)}")
        names = result_names(entry_function(program.module))
        for name, own, its in zip(names, found, expected, strict=True):
            if own.shape != its.shape:
                raise DiffersError(f"{name} is {own.shape}, in PyTorch {its.shape}")
            self._check(name, own, its, max(1.0, float(np.abs(its).max(initial=0))))

    def _compare_steps(self, program: ModelProgram, micro_batches: int) -> None:
        expected = self._expected_step(micro_batches)
        given = self._given(program)
        if self._labels is not None:
            given["labels"] = self._labels.numpy()
        results = self._results(program, given)
        function = entry_function(program.module)
        names, roles = argument_names(function), argument_roles(function)
        loss = float(np.asarray(results[0]))
        self._check(
            "the loss", np.array(loss), np.array(expected.loss), max(1, abs(loss))
        )
        gradients = {
            names[argument].removesuffix(".momentum"): results[result]
            for result, argument in updated_arguments(function).items()
            if roles[argument] == "state" and names[argument].endswith(".momentum")
        }
        everything = max(
            (float(np.abs(g).max(initial=0)) for g in expected.gradients.values()),
            default=0.0,
        )
        unknown = sorted(gradients.keys() - expected.gradients.keys())
        if unknown:
            raise DiffersError(f"PyTorch trains no {unknown[0]}")
        for name, its in expected.gradients.items():
            own = gradients.get(name)
            if own is None:
                if np.any(its) and name not in self._tied:
                    raise DiffersError(f"{name} is not trained")
                continue
            # A gradient may be all that is left of a sum of numbers as large as the others':
            # that of a bias before a batch norm is zero but for the rounding of its terms.
            largest = float(np.abs(its).max(initial=0)) + 5e-2 * everything
            self._check(f"the gradient of {name}", own, its, largest)

    def _check(self, what: str, own: Any, its: Any, largest: float) -> None:
        """Raises DiffersError for numbers that are further apart than rounding explains."""
        tolerance = DOUBLE_TOLERANCE if self.family.double else TOLERANCE
        error = float(np.abs(own.astype(np.float64) - its).max(initial=0))
        if not error <= tolerance * largest:
            raise DiffersError(f"{what} differs by {error:.2g} of {largest:.2g}")

    @cached_property
    def _tied(self) -> set[str]:
        """The names of parameters that are another one too; a program keeps one of them."""
        by_parameter: dict[torch.Tensor, list[str]] = {}
        named = self.model.module.named_parameters(remove_duplicate=False)
        for name, parameter in named:
            by_parameter.setdefault(parameter, []).append(name)
        return {n for names in by_parameter.values() if len(names) > 1 for n in names}

    @cached_property
    def _expected_steps(self) -> dict[int, Step]:
        return {}

    def _expected_step(self, micro_batches: int) -> Step:
        """Returns PyTorch's step, with the statistics of each micro-batch by themselves."""
        if micro_batches in self._expected_steps:
            return self._expected_steps[micro_batches]
        model = self.model
        twin = ZooModel(
            copy.deepcopy(model.module), model.inputs, model.loss, model.output
        )
        twin.mode(True)
        labels = self._labels
        parts = [
            {n: v.chunk(micro_batches)[i] for n, v in model.inputs.items()}
            for i in range(micro_batches)
        ]
        losses = [
            twin.loss_of(
                part, None if labels is None else labels.chunk(micro_batches)[i]
            )
            for i, part in enumerate(parts)
        ]
        loss = torch.stack(losses).mean()
        loss.backward()
        named = twin.module.named_parameters(remove_duplicate=False)
        step = Step(
            loss.item(),
            {n: p.grad.numpy() for n, p in named if p.grad is not None},
        )
        self._expected_steps[micro_batches] = step
        return step


def distributed(program: ModelProgram, options: Mapping[str, Any]) -> ModelProgram:
    """Returns the program distributed with these options; without any, as it is."""
    if not options:
        return program
    return distir.distribute(program, cluster="cpu", **options)


def visit(
    family: Family, columns: Sequence[str], tell: Callable[[str, str], None]
) -> None:
    """
    Runs columns of a family, and tells of each what came of it: "equal", or in one
    paragraph why not.
    """
    from distir.errors import DistIRError

    own = Visit(family)
    for column in columns:
        try:
            own.run(column)
        except (DistIRError, DiffersError) as error:
            tell(column, f"{type(error).__name__}: {error}")
        else:
            tell(column, "equal")
        if column == "d2 t2":
            try:
                found = own.shares()
            except DistIRError:
                continue
            tell("shares", f"{found.parameters:.4f} {found.flops:.4f}")
