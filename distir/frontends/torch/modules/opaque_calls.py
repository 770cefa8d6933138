"""
Converts calls of opaque modules to the form that a program stores, and this form back
to a call of the module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from distir.errors import DistIRError
from distir.frontends.torch.modules.opaque import declared_of

TENSOR = "*"
"""The placeholder for a tensor among the arguments of a call."""


@dataclass(frozen=True)
class FlatCall:
    """
    The arguments of a call: its `tensors` in order, and `arguments`, all arguments with
    `TENSOR` in place of each tensor. `arguments` is None if all arguments are
    positional tensors.
    """

    tensors: list[torch.Tensor]
    arguments: dict[str, Any] | None

    @staticmethod
    def of(what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FlatCall:
        """
        Returns the arguments of a call of the module `what`. Raises DistIRError for an
        argument that is not a tensor, number, text, Boolean or None.
        """
        tensors: list[torch.Tensor] = []

        def flat(name: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                return TENSOR
            plain = value is None or isinstance(value, bool | int | float | str)
            if not plain or value == TENSOR:
                raise DistIRError(
                    f"{what} is called with {name} of type {type(value).__name__}; an "
                    f"opaque module takes tensors, numbers, texts, flags and None"
                )
            return value

        own = [flat(f"argument {i}", value) for i, value in enumerate(args)]
        named = {name: flat(repr(name), value) for name, value in kwargs.items()}
        is_plain = not named and all(value == TENSOR for value in own)
        return FlatCall(tensors, None if is_plain else {"args": own, "kwargs": named})


def _filled(
    arguments: Mapping[str, Any] | None, tensors: Sequence[torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    if arguments is None:
        return list(tensors), {}
    rest = iter(tensors)

    def fill(value: Any) -> Any:
        return next(rest) if value == TENSOR else value

    args = [fill(value) for value in arguments["args"]]
    return args, {name: fill(value) for name, value in arguments["kwargs"].items()}


def tensors_in(what: str, output: Any) -> tuple[torch.Tensor, ...]:
    """
    Returns the tensors in `output`, the result of the module `what`. Raises DistIRError
    unless `output` is a tensor, or a list or tuple of tensors.
    """
    found: tuple[Any, ...] = (output,)
    if isinstance(output, list | tuple):
        found = tuple(output)
    for value in found:
        if not isinstance(value, torch.Tensor):
            raise DistIRError(
                f"{what} gives a {type(value).__name__}; an opaque module gives a tensor, or "
                f"a list or tuple of tensors"
            )
    return found


def as_leaves(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """
    Returns a copy of each tensor of floats in `inputs`, which requires gradients, and
    all other inputs unchanged.
    """
    return [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]


def gradients_of(
    results: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """
    Returns one entry for each tensor in `leaves`: its gradient, given the `gradients`
    of `results`. An entry is zeros for a tensor without influence on the results, and
    None for a tensor that requires no gradient.
    """
    pairs = [
        (y, dy) for y, dy in zip(results, gradients, strict=True) if y.requires_grad
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(
        torch.autograd.grad(
            [y for y, _ in pairs],
            wanted,
            [dy for _, dy in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        if pairs
        else [torch.zeros_like(leaf) for leaf in wanted]
    )
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


class OpaqueCalls:
    """
    Calls an opaque module of the training script, with given tensors in place of its
    parameters and buffers. `name` is the module's name in messages. In training, the
    parts of the module keep their current modes; if `is_training` is false, they are
    all in training mode.
    """

    def __init__(self, name: str, part: torch.nn.Module, is_training: bool):
        self._what = f"opaque module {name!r} ({type(part).__name__})"
        self._part = part
        self._modes = {
            each: each.training if is_training else True for each in part.modules()
        }
        declared = declared_of(part)
        self._communicates = declared is not None and declared.communicates

    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        *,
        tensors: Sequence[str],
        arguments: Mapping[str, Any] | None,
        trains: bool,
        group: Any = None,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """
        Returns the results of the module.

        - `inputs`: the tensors among the arguments of the module, then the values of its
          parameters and buffers;
        - `tensors`: the names of these parameters and buffers;
        - `arguments`: all arguments in the form of `FlatCall.arguments`;
        - `trains`: whether the module runs in training mode;
        - `group`, `sizes`: the process group over which the module communicates, and
          the sizes of the mesh axes of the group.
        """
        count = len(inputs) - len(tensors)
        state = dict(zip(tensors, inputs[count:], strict=True))
        args, kwargs = _filled(arguments, inputs[:count])
        if self._communicates:
            kwargs["group"] = group
        with self._in_mode(trains):
            output = torch.func.functional_call(self._part, state, tuple(args), kwargs)
        return tensors_in(self._what, output)

    @contextlib.contextmanager
    def _in_mode(self, trains: bool) -> Generator[None]:
        before = {each: each.training for each in self._modes}
        try:
            for each, mode in self._modes.items():
                each.training = mode and trains
            yield
        finally:
            for each, mode in before.items():
                each.training = mode
