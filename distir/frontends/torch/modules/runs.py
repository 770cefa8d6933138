"""
Runs modules without changing them, to compare them with programs, and measures the
difference between results.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distir.frontends.torch.modules.state import unchanged

Array = npt.NDArray[Any]

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of one call of a module."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def leaves(self) -> list[Any]:
        """All arguments of the call, taken out of the containers that hold them."""
        return _pytree.tree_leaves((tuple(self.args), dict(self.kwargs)))

    def with_leaves(self, leaves: Sequence[Any]) -> ModuleCall:
        """Returns a call with the arguments `leaves` in the same containers."""
        spec = _pytree.tree_structure((tuple(self.args), dict(self.kwargs)))
        args, kwargs = _pytree.tree_unflatten(list(leaves), spec)
        return ModuleCall(args, kwargs)

    def copied(self) -> ModuleCall:
        """
        Returns this call with a detached copy of each tensor. The module can overwrite
        the copies without changing the originals.
        """
        return self.with_leaves(
            [
                x.detach().clone() if isinstance(x, torch.Tensor) else x
                for x in self.leaves
            ]
        )


class _WithoutDropout(TorchDispatchMode):
    """
    Makes dropout return its input: the random numbers that dropout draws are replaced
    by their mean.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        if func is _aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def comparable(module: torch.nn.Module, *, training: bool) -> Generator[None]:
    """
    A context manager inside which a module runs as its program does: without dropout,
    and with the same random numbers each time. With `training`, each part is in its own
    mode; otherwise all parts are in evaluation mode. At the end, the module and the
    random numbers are restored.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(module, None if training else False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if any(part.training for part in module.modules()):
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(_WithoutDropout())
        yield


def called(module: torch.nn.Module, call: ModuleCall) -> list[Array]:
    """Returns the tensors among the results of a call of the module."""
    torch.manual_seed(0)
    own = call.copied()
    with torch.no_grad():
        return _arrays(module(*own.args, **own.kwargs))


def _arrays(output: Any) -> list[Array]:
    """Returns the tensors among the results of a module, as arrays."""
    leaves = _pytree.tree_leaves(output)
    return [as_array(x) for x in leaves if isinstance(x, torch.Tensor)]


def run_module(
    module: torch.nn.Module, call: ModuleCall, *, training: bool, wide: bool = False
) -> list[Array] | None:
    """
    Returns the tensors among the results of a call, or None if the module fails. With
    `wide`, the module computes with floats of twice the size.
    """
    try:
        with comparable(module, training=training):
            if not wide:
                return called(module, call)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            widened = {name: wider(tensor) for name, tensor in state.items()}
            args, kwargs = _pytree.tree_map_only(
                torch.Tensor, wider, (tuple(call.args), dict(call.kwargs))
            )
            with torch.no_grad():
                return _arrays(
                    torch.func.functional_call(module, widened, args, kwargs)
                )
    except (
        Exception
    ):  # whatever code of users raises for values that it does not expect
        return None


def wider(tensor: torch.Tensor) -> torch.Tensor:
    """
    Returns a tensor of floats in a type with twice as many bits, up to 64. Any other
    tensor is returned unchanged.
    """
    if not tensor.is_floating_point():
        return tensor
    wide = torch.float32 if tensor.element_size() < 4 else torch.float64
    return tensor.detach().to(wide)


def as_array(value: torch.Tensor) -> Array:
    """
    Returns a tensor as a NumPy array. Floats of fewer than 32 bits are converted to 32
    bits.
    """
    is_small = value.is_floating_point() and value.element_size() < 4
    return np.asarray((value.float() if is_small else value).detach().cpu())


_AMPLIFIED = 4
"""
The allowed ratio of two distances: from the program's result to the module's, and from
the module's result to the same in wider floats. Networks that amplify rounding differ
by more than the tolerance.
"""

_TOLERANCES = {8: 1e-4, 4: 1e-4, 2: 3e-2}
"""
The allowed difference of results, by bytes of an element, relative to the largest
number (at least 1). It covers rounding in another order, with room for networks that
amplify it.
"""


def difference(wanted: Array, found: Array) -> str | None:
    """
    Returns a text that describes the difference between two results, or None if they
    differ only by rounding.
    """
    if wanted.shape != found.shape:
        return f"has the shape {list(found.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind not in "fc":
        return None  # rounding may choose another index
    is_finite = np.isfinite(wanted)
    if not np.array_equal(is_finite, np.isfinite(found.astype(wanted.dtype))):
        return "is infinite, or no number, elsewhere"
    largest = float(np.abs(wanted[is_finite]).max(initial=0.0))
    apart = distance(wanted, found)
    if apart <= tolerance(wanted, found) * max(1.0, largest):
        return None
    return f"differs by {apart:.2g} (its largest number is {largest:.3g})"


def tolerance(one: Array, other: Array) -> float:
    """Returns the relative difference that rounding may cause between two results."""
    return _TOLERANCES.get(min(one.dtype.itemsize, other.dtype.itemsize), 1e-4)


def distance(one: Array, other: Array) -> float:
    """
    Returns the largest difference between the finite elements of two arrays, or
    infinity if their shapes differ.
    """
    if one.shape != other.shape:
        return float("inf")
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    first, second = one.astype(kind), other.astype(kind)
    finite = np.isfinite(first) & np.isfinite(second)
    return float(np.abs(first - second)[finite].max(initial=0.0))


def is_amplified_rounding(wanted: Array, found: Array, wide: Array) -> bool:
    """
    Whether the distance of `found` from a module's result `wanted` is similar to the
    distance of `wanted` from `wide`, the same result computed in wider floats.
    """
    return distance(wanted, found) <= _AMPLIFIED * distance(wide, wanted)
