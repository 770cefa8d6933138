"""
Checks the sharding rules of opaque modules, and runs opaque modules on arrays for the
interpreter.

A check runs the module on the inputs that it had in a run of the model: once on whole
tensors, and once on two or more parts along each dimension that its rule allows to
split. The parts' results and gradients, combined by the rule, must equal the results
and gradients of the whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch

from distir.dialects.train_ops.opaque import OpaqueBase, OpaqueGradOp
from distir.errors import DistIRError
from distir.frontends.torch.export.opaque import ObservedCall, OpaquePart
from distir.frontends.torch.modules.opaque import state_of
from distir.frontends.torch.modules.opaque_calls import (
    OpaqueCalls,
    as_leaves,
    gradients_of,
)
from distir.frontends.torch.modules.runs import (
    Array,
    as_array,
    comparable,
    distance,
    tolerance,
)
from distir.interpreters.train.opaque import OpaqueModule
from distir.sharding.kernel_rule import KernelRule, NamedDims

Tensors = Sequence[torch.Tensor]


def check_opaque(parts: Sequence[OpaquePart]) -> list[str]:
    """
    Checks the rules of opaque modules on the first call of each module in a run of the
    model. Returns notes on modules that could not be checked. Raises DistIRError, which
    names the module and the dimension, if a rule is wrong.
    """
    notes: list[str] = []
    checked: set[str] = set()
    for part in parts:
        if not part.observed or part.key in checked:
            continue
        checked.add(part.key)
        with comparable(part.module, training=part.module.training):
            why_not = _RuleCheck(part, part.observed[0]).run()
        if why_not is not None:
            notes.append(f"the rule of {part.what} was not checked: {why_not}")
    return notes


class _RuleCheck:
    """The check of one module's sharding rule, with the inputs of one call."""

    def __init__(self, part: OpaquePart, call: ObservedCall):
        self.part, self.call = part, call
        self.state = state_of(part.module)
        self.rule: KernelRule = part.rule().factors
        self.calls = OpaqueCalls(part.name, part.module, part.module.training)
        self.inputs = [t.detach() for t in (*call.inputs.tensors, *self.state.values())]
        self.sizes = self.rule.sizes([tuple(t.shape) for t in self.inputs], call.shapes)

    def run(self) -> str | None:
        """
        Runs the check. Returns the reason if the sharding rule cannot be checked, else
        None. Raises DistIRError if the rule is wrong.
        """
        torch.manual_seed(0)
        before = torch.get_rng_state()
        results = self._run(self.inputs)
        if not torch.equal(before, torch.get_rng_state()):
            return "it draws random numbers besides dropout"
        generator = torch.Generator().manual_seed(0)
        gradients = [
            torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y) + 0.5
            for y in results
        ]
        whole = [*results, *self._gradients(self.inputs, gradients)]
        for name in self.rule.split:
            size = self.sizes[name]
            if size > 1:
                self._check(name, _smallest_divisor(size), gradients, whole)
        return None

    def _check(self, name: str, count: int, gradients: Tensors, whole: Tensors) -> None:
        """
        Raises DistIRError unless the module computes the same on `count` parts along
        the dimension `name` as on whole tensors. `gradients` are the gradients of the
        module's results. `whole` are the results and the gradients of the inputs on
        whole tensors.
        """
        inputs = self._parts(self.inputs, self.rule.operands, name, count)
        given = self._parts(gradients, self.rule.results, name, count)
        found: list[list[torch.Tensor]] = []
        for own, dy in zip(inputs, given, strict=True):
            try:
                found.append([*self._run(own), *self._gradients(own, dy)])
            except Exception as error:  # whatever the user's code raises on a part
                raise DistIRError(
                    f"{self._wrong(name)}: on a part of {self.sizes[name] // count} of its "
                    f"{self.sizes[name]} elements it fails ({type(error).__name__}: "
                    f"{error}){self._advice(name)}"
                ) from error
        dims = [*self.rule.results, *self.rule.operands]
        known = [f"result {i}" for i in range(len(self.rule.results))]
        count_of_inputs = len(self.inputs) - len(self.state)
        known += [f"the gradient of argument {i}" for i in range(count_of_inputs)]
        known += [f"the gradient of {n!r}" for n in self.state]
        columns = zip(*found, strict=True)
        for what, own, wanted, parts in zip(known, dims, whole, columns, strict=True):
            try:
                joined = self._joined(parts, own, name, wanted)
            except RuntimeError as error:
                raise DistIRError(
                    f"{self._wrong(name)}: {what} has shape {list(parts[0].shape)} on a "
                    f"part, which does not fit{self._advice(name)}"
                ) from error
            one, other = as_array(joined), as_array(wanted)
            largest = float(np.abs(other).max(initial=0.0))
            apart = distance(one, other)
            if apart > tolerance(one, other) * max(largest, 1e-30):
                raise DistIRError(
                    f"{self._wrong(name)}: {what}, put together from {count} parts of it, "
                    f"differs from that of the whole by {apart:.2g} (its largest number is "
                    f"{largest:.3g}){self._advice(name)}"
                )

    def _wrong(self, name: str) -> str:
        return f"{self.part.what}: its rule {self.part.declared.rule!r} lets {name!r} be split"

    def _advice(self, name: str) -> str:
        kept = f"{self.part.declared.keep} {name}".strip()
        return f'; if it needs that dimension whole, say keep="{kept}"'

    def _run(self, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self._called([t.clone() for t in inputs])

    def _called(self, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        return self.calls(
            inputs,
            tensors=list(self.state),
            arguments=self.call.inputs.arguments,
            trains=self.part.module.training,
        )

    def _gradients(self, inputs: Tensors, gradients: Tensors) -> list[torch.Tensor]:
        """
        Returns the gradient of each input, or zeros for an input without a gradient.
        `gradients` are the gradients of the results.
        """
        with torch.enable_grad():
            leaves = as_leaves(inputs)
            found = gradients_of(self._called(leaves), gradients, leaves)
        return [
            torch.zeros_like(leaf) if own is None else own
            for own, leaf in zip(found, leaves, strict=True)
        ]

    def _parts(
        self, tensors: Tensors, dims: Sequence[NamedDims], name: str, count: int
    ) -> list[list[torch.Tensor]]:
        """
        Splits `tensors` into `count` parts along the dimension `name`, and returns the
        tensors of each part. `dims` names the dimensions of each tensor.
        """
        split = [
            self._split(t, d, name, count) for t, d in zip(tensors, dims, strict=True)
        ]
        return [list(part) for part in zip(*split, strict=True)]

    def _split(
        self, tensor: torch.Tensor, dims: NamedDims, name: str, count: int
    ) -> list[torch.Tensor]:
        for d, dim in enumerate(dims):
            if name in dim:
                view = tensor.unflatten(d, self._factor_sizes(dim))
                parts = view.chunk(count, d + dim.index(name))
                return [p.flatten(d, d + len(dim) - 1) for p in parts]
        return [tensor] * count

    def _factor_sizes(self, dim: Sequence[str | int]) -> list[int]:
        return [part if isinstance(part, int) else self.sizes[part] for part in dim]

    def _joined(
        self, parts: Tensors, dims: NamedDims, name: str, like: torch.Tensor
    ) -> torch.Tensor:
        """
        Returns the whole tensor for its `parts` along dimension `name`: their
        concatenation, or their sum if the tensor does not have the dimension. The
        result has the shape of `like`.
        """
        for d, dim in enumerate(dims):
            if name in dim:
                at = dim.index(name)
                sizes = self._factor_sizes(dim)
                sizes[at] //= len(parts)
                views = [p.unflatten(d, sizes) for p in parts]
                joined = torch.cat(views, d + at).flatten(d, d + len(dim) - 1)
                break
        else:
            joined = torch.stack(list(parts)).sum(0)
        return joined.reshape(like.shape)


def _smallest_divisor(size: int) -> int:
    return next(n for n in range(2, size + 1) if size % n == 0)


def modules_on_arrays(
    parts: Sequence[OpaquePart], *, training: bool
) -> Mapping[str, OpaqueModule]:
    """
    Returns a function for each opaque module, which calls the module on arrays without
    dropout. Keys are the names of the modules in programs. With `training`, modules
    keep their current modes.
    """
    return {part.key: _OnArrays(part, training) for part in reversed(parts)}


_ONE_AT_A_TIME = Lock()
"""
A lock that is held while a module runs on arrays. Devices run in threads, and a call
temporarily changes the modes and the parameters of the module.
"""


class _OnArrays:
    """A function that calls an opaque module on arrays."""

    def __init__(self, part: OpaquePart, training: bool):
        self._part, self._training = part, training
        self._calls = OpaqueCalls(part.name, part.module, part.module.training)

    def __call__(
        self, op: OpaqueBase, inputs: Sequence[Array], gradients: Sequence[Array]
    ) -> list[Array]:
        tensors = [torch.from_numpy(np.array(x)) for x in inputs]
        how: dict[str, Any] = {
            "tensors": op.tensor_names,
            "arguments": op.call_arguments,
            "trains": op.trains is not None,
        }
        with (
            _ONE_AT_A_TIME,
            comparable(self._part.module, training=self._training),
        ):
            torch.manual_seed(0)
            if not isinstance(op, OpaqueGradOp):
                with torch.no_grad():
                    return [as_array(y) for y in self._calls(tensors, **how)]
            with torch.enable_grad():
                leaves = [
                    t.requires_grad_(i in op.wanted) for i, t in enumerate(tensors)
                ]
                results = self._calls(leaves, **how)
                found: Any = torch.autograd.grad(
                    [results[i] for i in op.known],
                    [leaves[i] for i in op.wanted],
                    [torch.from_numpy(np.array(dy)) for dy in gradients],
                    allow_unused=True,
                )
        return [
            np.zeros_like(inputs[i]) if dx is None else as_array(dx)
            for i, dx in zip(op.wanted, found, strict=True)
        ]
