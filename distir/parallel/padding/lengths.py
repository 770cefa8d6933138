"""
Pads the sequences of a call to one of a few lengths. Each length needs its own program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from distir.errors import DistIRError
from distir.gradients.options import IGNORED_LABEL

Lengths = int | Sequence[int]
"""A number of which lengths are made multiples, or the lengths that there may be."""

_LABELS = "labels"
"""The name that stands for all labels."""


@dataclass(frozen=True)
class Padding:
    """
    The lengths to which calls pad sequences. Sequences are dimension 1 of the inputs
    and labels named in `lengths`, each with its own lengths. A single negative length
    -n stands for all multiples of n. The name "" stands for all inputs and labels of
    integers or flags that have such a dimension. `values` are the numbers to append, by
    name. The default is 0, or for integer labels the label that the loss ignores.
    """

    lengths: Mapping[str, tuple[int, ...]]
    values: Mapping[str, float]

    @staticmethod
    def of(
        pad_to: Lengths | Mapping[str, Lengths] | None,
        pad_with: Mapping[str, float] | None,
    ) -> Padding | None:
        """
        Returns the padding that the arguments `pad_to` and `pad_with` of `parallelize`
        describe, or None if both ask for no padding. Raises DistIRError if an argument
        is invalid.
        """
        if pad_to is None:
            if pad_with:
                raise DistIRError(
                    "parallelize: pad_with says what sequences are padded with, but nothing "
                    "is padded; give pad_to too"
                )
            return None
        named = pad_to if isinstance(pad_to, Mapping) else {"": pad_to}
        found: dict[str, tuple[int, ...]] = {}
        for name, given in named.items():
            own = (given,) if isinstance(given, int) else tuple(given)
            if not own or min(own) < 1 or list(own) != sorted(set(own)):
                raise DistIRError(
                    f"parallelize: pad_to is {given!r}; give a number of which lengths are "
                    f"made multiples, such as 64, or lengths in ascending order"
                )
            found[name] = (-own[0],) if isinstance(given, int) else own
        return Padding(found, dict(pad_with or {}))

    def check_names(self, inputs: Sequence[str], labels: Sequence[str]) -> None:
        """
        Raises DistIRError if the padding names an input or label that the module lacks.
        `inputs` and `labels` are the names of the module's inputs and labels.
        """
        known = [*inputs, *labels]
        if labels and _LABELS not in labels:
            known.append(_LABELS)
        for name in (*self.lengths, *self.values):
            if name and name not in known:
                raise DistIRError(
                    f"parallelize: pad_to or pad_with names {name!r}, which is no input; "
                    f"there are {', '.join(known)}"
                )

    def of_ranks(
        self,
        specs: Sequence[Any],
        labels: Sequence[str],
        rows: Sequence[Sequence[Sequence[int]]],
    ) -> dict[str, int]:
        """
        Returns the length of each padded input and label, by name: the smallest allowed
        length that has room for the longest sequence of all ranks. `rows` has, for each
        rank, the shapes of its tensors. Raises DistIRError for a sequence that is
        longer than every allowed length.
        """
        found: dict[str, int] = {}
        for index, spec in enumerate(specs):
            lengths = self._lengths(spec, labels)
            if lengths is None:
                continue
            if len(spec.shape) < 2:
                if spec.name not in self.lengths:
                    continue
                raise DistIRError(
                    f"parallelize: pad_to names {spec.role} {spec.name!r}, which has no "
                    f"dimension 1, of sequences; leave it out"
                )
            size = max(shapes[index][1] for shapes in rows)
            if lengths[0] < 0:
                found[spec.name] = -(-size // -lengths[0]) * -lengths[0]
                continue
            place = bisect_left(lengths, size)
            if place == len(lengths):
                raise DistIRError(
                    f"{spec.role} {spec.name!r} has length {size}, and the largest that "
                    f"pad_to allows is {lengths[-1]}; cut it, or allow a larger one"
                )
            found[spec.name] = lengths[place]
        return found

    def _lengths(self, spec: Any, labels: Sequence[str]) -> tuple[int, ...] | None:
        names = (spec.name, _LABELS) if spec.name in labels else (spec.name,)
        for name in names:
            if name in self.lengths:
                return self.lengths[name]
        is_float = spec.dtype.is_floating_point or spec.dtype.is_complex
        return None if is_float else self.lengths.get("")

    def padded(
        self, name: str, tensor: torch.Tensor, length: int, *, is_label: bool
    ) -> torch.Tensor:
        """Returns the input or label `name` with its sequences padded to `length`."""
        missing = length - tensor.shape[1]
        if not missing:
            return tensor
        is_float = tensor.is_floating_point() or tensor.is_complex()
        value = IGNORED_LABEL if is_label and not is_float else 0
        if is_label:
            value = self.values.get(_LABELS, value)
        value = self.values.get(name, value)
        return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing), value=value)


def cut(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """
    Returns `tensor` cut to the sizes of `shape` in all dimensions except the first.
    """
    for dim, size in enumerate(shape[1:], 1):
        if tensor.shape[dim] > size:
            tensor = tensor.narrow(dim, 0, size)
    return tensor
