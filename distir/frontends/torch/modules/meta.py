"""
Handles modules whose tensors have shapes but no values: tensors on the meta device, or
PyTorch's fake tensors. For the exporters, module and inputs are placed on the CPU,
still without values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode


def has_no_value(tensor: torch.Tensor) -> bool:
    """
    Whether a tensor has no value: it is on the meta device, or a fake tensor of
    PyTorch.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor.is_meta or isinstance(tensor, FakeTensor)


def lacks_values(module: torch.nn.Module) -> bool:
    """Whether any parameter or buffer of a module has no value."""
    return any(has_no_value(t) for t in (*module.parameters(), *module.buffers()))


def any_without_value(structure: Any) -> bool:
    """Whether any tensor in nested containers has no value."""
    import torch
    from torch.utils import _pytree

    leaves = _pytree.tree_leaves(structure)
    return any(isinstance(x, torch.Tensor) and has_no_value(x) for x in leaves)


def fake_on_cpu(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """
    Returns a fake tensor of `mode` on the CPU with the shape, strides and type of
    `tensor`.
    """
    import torch

    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
        )


@contextlib.contextmanager
def without_values(module: torch.nn.Module, example: Any) -> Generator[Any]:
    """
    A context manager inside which all tensors without values in a module and in example
    inputs are on the CPU, still without values. Buffers that the module itself can
    compute get their values.

    Yields the example inputs. If the caller is inside a fake tensor mode, the mode is
    suspended.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.utils import _pytree

    leaves = [x for x in _pytree.tree_leaves(example) if isinstance(x, torch.Tensor)]
    if not lacks_values(module) and not any(map(has_no_value, leaves)):
        with unset_fake_temporarily():
            yield example
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    made: dict[torch.Tensor, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in made:
            fake = fake_on_cpu(tensor, mode)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, tensor.requires_grad)
            made[tensor] = fake
        return made[tensor]

    held = list(_valueless(module))
    try:
        with unset_fake_temporarily():
            for tensors, name, tensor in held:
                tensors[name] = stand_in(tensor)
            for tensors, name, value in _computed(module, held):
                tensors[name] = value
            yield _pytree.tree_map_only(
                torch.Tensor, lambda t: stand_in(t) if has_no_value(t) else t, example
            )
    finally:
        for tensors, name, tensor in held:
            tensors[name] = tensor


_Place = tuple[dict[str, Any], str, "torch.Tensor"]
"""
A module's table of parameters or buffers, a name in it, and the tensor with that name.
"""


def _valueless(module: torch.nn.Module) -> Iterator[_Place]:
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in tensors.items():
                if tensor is not None and has_no_value(tensor):
                    yield tensors, name, tensor


def _computed(module: torch.nn.Module, held: Sequence[_Place]) -> list[_Place]:
    """
    Computes the buffers in `held` that no checkpoint stores, such as the frequencies of
    rotary embeddings, and returns their places. Works for Hugging Face's models, which
    compute such buffers in `_init_weights` of `PreTrainedModel`. Leaves out buffers
    that this method does not change.
    """

    valueless = {(id(tensors), name) for tensors, name, _ in held}
    found: list[_Place] = []
    for root in module.modules():
        compute = getattr(root, "_init_weights", None)
        if compute is None or not hasattr(root, "_initialize_weights"):
            continue
        for part in root.modules():
            # It draws new values for a part's parameters, which real ones must not get.
            if any(not hasattr(p, "fake_mode") for p in part.parameters()):
                continue
            buffers = part._buffers  # pyright: ignore[reportPrivateUsage]
            passing = part._non_persistent_buffers_set  # pyright: ignore[reportPrivateUsage]
            names = [
                n for n in buffers if n in passing and (id(buffers), n) in valueless
            ]
            if names:
                values = _determined(partial(compute, part), buffers, names)
                found += [(buffers, name, value) for name, value in values.items()]
        break
    return found


def _determined(
    compute: Callable[[], object], buffers: dict[str, Any], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """
    Calls `compute`, and returns the values that it writes to the buffers `names`.
    Leaves out a buffer if its new value depends on its old value.
    """
    import torch

    before, outcomes = dict(buffers), list[dict[str, torch.Tensor]]()
    try:
        for filling in (0, 1):
            for name in names:
                like = before[name]
                buffers[name] = torch.full(like.shape, filling, dtype=like.dtype)
            # If this fails, the fill values stay, which differ.
            with torch.no_grad(), contextlib.suppress(Exception):
                compute()
            outcomes.append({name: buffers[name] for name in names})
    finally:
        buffers.update(before)
    first, second = outcomes
    return {n: first[n] for n in names if torch.equal(first[n], second[n])}
