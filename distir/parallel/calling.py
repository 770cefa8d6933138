"""Maps the tensors in a call of a module to the inputs of its programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.torch.export.opaque import opaque_as_ops, parts_of
from distir.frontends.torch.modules.inputs import leaf_names
from distir.frontends.torch.modules.meta import fake_on_cpu, has_no_value
from distir.parallel.padding.lengths import cut
from distir.parallel.scripts.kept_source import KeptSource


def fake_output(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """
    Returns the output of a module with fake tensors: they have shapes, but no values.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # With an environment, sizes that depend on values are unknown numbers, not errors.
    fakes = FakeTensorMode(
        allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True
    )
    with opaque_as_ops(parts_of(module)), fakes as mode, torch.no_grad():
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
    The inputs of a module: the signature of its `forward`, and the example from which
    its program was made. A call may pass tensors with other values than in the example.
    All other arguments must equal the example's, because the program depends on them.
    """

    def __init__(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ):
        self._module = type(module).__name__
        self._signature = inspect.signature(module.forward)
        self._example = self._named(args, kwargs)
        self._order = self._exported(args, kwargs)
        self.kept = KeptSource(module)
        self._args, self._kwargs = args, kwargs
        self._structure: Any = None
        self._output_shapes: dict[Any, list[torch.Size]] = {}

    def __deepcopy__(self, memo: object) -> Inputs:
        """Returns the object itself: copies of a parallel module share it."""
        return self

    @property
    def source(self) -> torch.nn.Module:
        """The module, or its outline without values if the script has dropped it."""
        return self.kept.module

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """
        Returns the leaves of a call's arguments, by the names that exporters give them.
        Raises DistIRError if the arguments do not fit the signature.
        """
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
        Returns the names of the example's tensors in the order of exporters: first the
        positional arguments, then the named arguments in the order of the call.
        """
        leaves, structure = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        places = list(map(_Place, range(len(leaves))))
        marked = self._named(*_pytree.tree_unflatten(places, structure))
        names = {p.index: n for n, p in marked.items() if isinstance(p, _Place)}
        return [names[i] for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def has_labels(self, args: Sequence[Any], labels: Sequence[str]) -> bool:
        """
        Whether the positional arguments `args` of a call end with labels, after the
        inputs. `labels` are the names of the program's labels; without any, the answer
        is False.
        """
        return bool(labels) and len(args) == len(self._args) + 1

    def by_name(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """
        Returns the tensors of a call, by the `names` of a program's inputs. Raises
        DistIRError if the call differs from the example in more than the values of
        tensors.
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
        """
        Returns the module's output: the program's results `leaves` in the structure of
        the module's own output. If that structure has another number of tensors,
        returns the only result, or a tuple of all results.
        """
        if self._structure is None:
            output = fake_output(self.source, self._args, self._kwargs)
            self._structure = _pytree.tree_structure(output)
        if self._structure.num_leaves == len(leaves):
            return _pytree.tree_unflatten(list(leaves), self._structure)
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def here(self, call: Any) -> Any:
        """
        Returns the structure `call` with its tensors moved to the device of the source
        module's parameters, or to the CPU if they have been freed. Returns `call`
        unchanged if the parameters never had values.
        """
        first = next(self.source.parameters(), None)
        if first is None or (has_no_value(first) and not self.kept.is_released):
            return call
        device = torch.device("cpu") if has_no_value(first) else first.device
        return _pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), call)

    def without_padding(
        self,
        outputs: Sequence[torch.Tensor],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> list[torch.Tensor]:
        """
        Returns the `outputs` of a padded call, cut to the shapes that the module's
        outputs have for the unpadded arguments `args` and `kwargs`.
        """
        leaves = _pytree.tree_leaves((tuple(args), dict(kwargs)))
        key = tuple(x.shape if isinstance(x, torch.Tensor) else None for x in leaves)
        if key not in self._output_shapes:
            call = self.here((tuple(args), dict(kwargs)))
            found = _pytree.tree_leaves(fake_output(self.source, *call))
            self._output_shapes[key] = [
                x.shape for x in found if isinstance(x, torch.Tensor)
            ]
        shapes = self._output_shapes[key]
        if len(shapes) != len(outputs):
            return list(outputs)
        return [cut(x, shape) for x, shape in zip(outputs, shapes, strict=True)]

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
    """A placeholder for a leaf of a call, with its index."""

    index: int


class Labels:
    """
    The labels of a call in training, which follow the inputs: one tensor, or several in
    the structure of `example`.
    """

    def __init__(self, example: Any = None):
        self._example = example
        self._structure = _pytree.tree_structure(example)

    def __deepcopy__(self, memo: object) -> Labels:
        """Returns the object itself: copies of a parallel module share it."""
        return self

    def by_name(self, given: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """
        Returns the tensors in the labels `given`, by their `names` in the program.
        Raises DistIRError if their structure differs from the example's.
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
    """
    Returns a description of nested containers, for messages: "a tensor" for each
    tensor, and the value of each leaf that is not a tensor.
    """
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
