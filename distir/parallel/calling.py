"""Maps the tensors of a module's call to the inputs of its programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.torch_meta import fake_on_cpu, has_no_value
from distir.frontends.torch_names import leaf_names


def fake_output(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Returns a module's output, with tensors that have shapes and no values."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes = _pytree.tree_map_only(
            torch.Tensor,
            lambda t: (
                fake_on_cpu(t, mode)
                if has_no_value(t)
                else mode.from_tensor(t.detach())
            ),
            (state, tuple(args), dict(kwargs)),
        )
        return torch.func.functional_call(module, *fakes)


class Inputs:
    """
    The signature of a module's forward, with the example that it was made for: tensors may
    have other values in a call, everything else is part of the program.
    """

    def __init__(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ):
        self._module = type(module).__name__
        self._signature = inspect.signature(module.forward)
        self._example = self._named(args, kwargs)
        self._source = module
        self._args, self._kwargs = args, kwargs
        self._structure: Any = None

    def __deepcopy__(self, memo: object) -> Inputs:
        """Returns itself: copies of a parallel module are called alike."""
        return self

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the leaves of a call by the names that exporters give them."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise DistIRError(
                f"{self._module} cannot be called like that: {error} (in training the "
                f"last positional argument is taken for the labels)"
            ) from error
        bound.apply_defaults()  # a call may spell them out
        given = dict(bound.arguments)
        leaves = _pytree.tree_leaves(given)
        return dict(zip(leaf_names(given, "input"), leaves, strict=True))

    def by_name(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """
        Returns the tensors of a call for the inputs of a program, which has these `names`.
        Raises DistIRError for a call that differs in more than the values of tensors.
        """
        given = self._named(args, kwargs)
        self._check(given)
        tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
        if set(names) <= set(tensors):
            return {name: tensors[name] for name in names}
        if len(names) == len(tensors):
            return dict(zip(names, tensors.values(), strict=True))
        raise DistIRError(
            f"the program of {self._module} takes {', '.join(names)}, but a call gives "
            f"{', '.join(tensors)}; name tensors as its forward does"
        )

    def output(self, leaves: Sequence[torch.Tensor]) -> Any:
        """Returns the module's output, made of the results of its program."""
        if self._structure is None:
            output = fake_output(self._source, self._args, self._kwargs)
            self._structure = _pytree.tree_structure(output)
        if self._structure.num_leaves == len(leaves):
            return _pytree.tree_unflatten(list(leaves), self._structure)
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def _check(self, given: Mapping[str, Any]) -> None:
        for name in dict.fromkeys((*self._example, *given)):
            before, now = self._example.get(name), given.get(name)
            if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
                continue
            if before is not now and not _equal(before, now):
                raise DistIRError(
                    f"{self._module} was parallelized with {name} = {_shown(before)}, but "
                    f"is called with {_shown(now)}; parallelize it with an example of what "
                    f"it is called with (in training the labels come behind that)"
                )


def _equal(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    return bool(before == now)


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)
