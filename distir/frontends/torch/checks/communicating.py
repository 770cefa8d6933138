"""
Calls the opaque modules of a training script on this process, and checks the opaque
modules that contain their own communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from distir.errors import DistIRError
from distir.frontends.torch.export.opaque import OpaquePart, parts_of
from distir.frontends.torch.modules.opaque_calls import (
    OpaqueCalls,
    as_leaves,
    gradients_of,
)
from distir.frontends.torch.modules.runs import (
    as_array,
    comparable,
    distance,
    tolerance,
)
from distir.sharding.opaque_rule import Placed

Tensors = Sequence[torch.Tensor]


def live_modules(module: torch.nn.Module, *, check: bool) -> dict[str, OpaqueCalls]:
    """
    Returns functions that call the opaque modules of a model, by the names of the
    modules in programs. If `module` is in evaluation mode, all parts of its opaque
    modules are trained. With `check`, the first call of each module that communicates
    is compared with a call on one process.
    """
    return {
        part.key: _CheckedCalls(part, module.training)
        if check and part.declared.communicates
        else OpaqueCalls(part.name, part.module, module.training)
        for part in reversed(parts_of(module))
    }


class _CheckedCalls(OpaqueCalls):
    """
    Calls a module that communicates over a group of processes, and checks the first
    call. For the check each process gathers the group's tensors and runs the module
    without a group. The results and gradients of both calls must agree.
    """

    def __init__(self, part: OpaquePart, is_training: bool):
        super().__init__(part.name, part.module, is_training)
        self._opaque, self._is_checked = part, False

    def __call__(
        self,
        inputs: Tensors,
        *,
        tensors: Sequence[str],
        arguments: Mapping[str, Any] | None,
        trains: bool,
        group: Any = None,
        sizes: Mapping[str, int] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        how: dict[str, Any] = {
            "tensors": tensors,
            "arguments": arguments,
            "trains": trains,
        }
        if group is not None and not self._is_checked:
            self._is_checked = True
            with comparable(self._opaque.module, training=trains):
                self._check(inputs, how, group, sizes or {})
        return super().__call__(inputs, **how, group=group, sizes=sizes)

    def _check(
        self,
        inputs: Tensors,
        how: Mapping[str, Any],
        group: Any,
        sizes: Mapping[str, int],
    ) -> None:
        """
        Compares a call on the parts `inputs` with a call on whole tensors. `how` are
        the keyword arguments of the call. Raises DistIRError on every process of the
        group if results or gradients differ.
        """
        rule = self._opaque.rule()
        problem: str | None = None
        own = [t.detach() for t in inputs]
        whole = [
            _whole(t, placed, group, sizes)
            for t, placed in zip(own, rule.operands, strict=True)
        ]
        torch.manual_seed(0)
        before = torch.get_rng_state()
        wanted, gradients = self._step(whole, None, how, None)
        if not torch.equal(before, torch.get_rng_state()):
            return  # it draws random numbers besides dropout
        place, count = dist.get_rank(group), dist.get_world_size(group)
        given = [
            _part(dy, placed, place, sizes) / _copies(placed, sizes)
            for dy, placed in zip(_cotangents(wanted), rule.results, strict=True)
        ]
        found, own_gradients = self._step(own, given, how, group)
        rows = [
            (f"result {i}", y, _part(z, placed, place, sizes))
            for i, (y, z, placed) in enumerate(
                zip(found, wanted, rule.results, strict=True)
            )
        ]
        names = [f"argument {i}" for i in range(len(own) - len(how["tensors"]))]
        names += [repr(name) for name in how["tensors"]]
        for name, dx, dz, placed in zip(
            names, own_gradients, gradients, rule.operands, strict=True
        ):
            if dx is None or dz is None:
                continue
            for i, (axis, _) in enumerate(sizes.items()):
                if axis not in dict(placed):
                    dx = _summed(dx, i, group, sizes)
            rows.append(
                (f"the gradient of {name}", dx, _part(dz, placed, place, sizes))
            )
        for what, one, other in rows:
            problem = problem or _difference(what, one, other)
        said: list[Any] = [None] * count
        dist.all_gather_object(said, problem, group=group)
        worst = next((text for text in said if text is not None), None)
        if worst is not None:
            raise DistIRError(
                f"{self._opaque.what}: on {count} processes it computes something else than "
                f"on one: {worst}; its rule is {self._opaque.declared.rule!r}, and its "
                f"collectives must take part in autograd"
            )

    def _step(
        self,
        inputs: Tensors,
        given: Tensors | None,
        how: Mapping[str, Any],
        group: Any,
    ) -> tuple[Tensors, list[torch.Tensor | None]]:
        """
        Returns the results of the module and the gradients of its inputs. `given` are
        the gradients of the results; if it is None, `_cotangents` makes random ones.
        `how` are the keyword arguments of the call.
        """
        torch.manual_seed(0)
        with torch.enable_grad():
            leaves = as_leaves(inputs)
            results = super().__call__(leaves, **how, group=group)
            given = _cotangents(results) if given is None else given
            gradients = gradients_of(results, given, leaves)
        return [y.detach() for y in results], gradients


def _cotangents(results: Tensors) -> list[torch.Tensor]:
    """Returns random gradients for `results`, equal on all processes."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y) + 0.5
        for y in results
    ]


def _copies(placed: Placed, sizes: Mapping[str, int]) -> int:
    """
    Returns the number of processes of a group that hold the same part of a tensor.
    `placed` lists the axes that split the tensor, and `sizes` the sizes of the group's
    axes.
    """
    copies = 1
    for axis, size in sizes.items():
        copies *= 1 if axis in dict(placed) else size
    return copies


def _whole(
    part: torch.Tensor, placed: Placed, group: Any, sizes: Mapping[str, int]
) -> torch.Tensor:
    """Returns a whole tensor, gathered from the parts of the processes of a group."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    places = product(*(range(size) for size in sizes.values()))
    known = dict(zip(places, parts, strict=True))
    dims = dict(placed)
    for axis, size in reversed(list(sizes.items())):
        known = {
            place: torch.cat([known[*place, i] for i in range(size)], dims[axis])
            if axis in dims
            else known[*place, 0]
            for place in dict.fromkeys(place[:-1] for place in known)
        }
    return known[()]


def _part(
    whole: torch.Tensor, placed: Placed, place: int, sizes: Mapping[str, int]
) -> torch.Tensor:
    """
    Returns the part of the tensor `whole` on the process with index `place` in a group.
    """
    for axis, size in reversed(list(sizes.items())):
        place, own = divmod(place, size)
        if axis in dict(placed):
            whole = whole.chunk(size, dict(placed)[axis])[own]
    return whole


def _summed(
    value: torch.Tensor, axis: int, group: Any, sizes: Mapping[str, int]
) -> torch.Tensor:
    """
    Returns the sum of `value` over the axis of the group with index `axis` in `sizes`.
    """
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value.contiguous(), group=group)
    places = list(product(*(range(size) for size in sizes.values())))
    own = list(places[dist.get_rank(group)])
    total = torch.zeros_like(value)
    for place, part in zip(places, parts, strict=True):
        others = [i for i in range(len(own)) if i != axis]
        if all(place[i] == own[i] for i in others):
            total += part
    return total


def _difference(what: str, found: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """
    Returns a message that describes the difference between two tensors, or None if they
    differ only by rounding. `what` names the tensors in the message.
    """
    one, other = as_array(found), as_array(wanted)
    if one.shape != other.shape:
        return f"{what} has shape {list(one.shape)} instead of {list(other.shape)}"
    largest = float(np.abs(other).max(initial=0.0))
    apart = distance(one, other)
    if apart <= tolerance(one, other) * max(largest, 1e-30):
        return None
    return f"{what} differs by {apart:.2g} (its largest number is {largest:.3g})"
