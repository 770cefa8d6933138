"""Maps the tensors of a module's call to the inputs of its programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.torch.modules.inputs import leaf_names
from distir.frontends.torch.modules.meta import fake_on_cpu, has_no_value


def fake_output(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Returns a module's output, with tensors that have shapes and no values."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # With an environment, sizes that depend on values are unknown numbers, not errors.
    fakes = FakeTensorMode(
        allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True
    )
    with fakes as mode, torch.no_grad():
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        own, given, named = _pytree.tree_map_only(
            torch.Tensor,
            lambda t: (
                fake_on_cpu(t, mode)
                if has_no_value(t)
                else mode.from_tensor(t.detach())
            ),
            (state, tuple(args), dict(kwargs)),
        )
        return torch.func.functional_call(module, own, given, named)


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
        self._order = self._exported(args, kwargs)
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

    def _exported(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """
        Returns the names of the tensors of the example in the order in which exporters
        take them: positional arguments, and named ones as they are given.
        """
        leaves, structure = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        places = list(map(_Place, range(len(leaves))))
        marked = self._named(*_pytree.tree_unflatten(places, structure))
        names = {p.index: n for n, p in marked.items() if isinstance(p, _Place)}
        return [names[i] for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def has_labels(self, args: Sequence[Any], labels: Sequence[str]) -> bool:
        """Whether a call of a program with these labels has them behind the inputs."""
        return bool(labels) and len(args) == len(self._args) + 1

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
        if len(names) == len(self._order):
            ordered = (tensors[name] for name in self._order)
            return dict(zip(names, ordered, strict=True))
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


@dataclass(frozen=True)
class _Place:
    """Stands for a leaf of a call."""

    index: int


class Labels:
    """
    The labels of a call in training, after the inputs: a tensor, or tensors in the
    structure of an example.
    """

    def __init__(self, example: Any = None):
        self._example = example
        self._structure = _pytree.tree_structure(example)

    def __deepcopy__(self, memo: object) -> Labels:
        """Returns itself: copies of a parallel module are called alike."""
        return self

    def by_name(self, given: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """
        Returns the tensors of labels by the names that a program has for them. Raises
        DistIRError for labels of another structure.
        """
        leaves, structure = _pytree.tree_flatten(given)
        if structure == self._structure:
            pairs = zip(_pytree.tree_leaves(self._example), leaves, strict=True)
            if all(
                isinstance(now, torch.Tensor)
                if before is None or isinstance(before, torch.Tensor)
                else _equal(before, now)
                for before, now in pairs
            ):
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                return dict(zip(names, tensors, strict=True))
        expected = "a tensor" if self._example is None else _outline(self._example)
        raise DistIRError(
            f"the labels are {_outline(given)}, but the module was parallelized for "
            f"{expected}; give such labels as the last positional argument, or parallelize "
            f"with an example of them (labels=...)"
        )


def _outline(value: Any) -> str:
    """Describes tensors in containers, and what else is among them."""
    leaves, structure = _pytree.tree_flatten(value)
    shown = [_Shown(_shown(leaf)) for leaf in leaves]
    return str(_pytree.tree_unflatten(shown, structure))


@dataclass(frozen=True)
class _Shown:
    text: str

    def __repr__(self) -> str:
        return self.text


def _equal(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    return bool(before == now)


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)
