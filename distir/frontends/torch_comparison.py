"""
Compares programs with the modules that PyTorch's older exporter wrote them from. It records
calls one by one and writes some of them as others: what is written in place through views of
a tensor is lost, for instance (Longformer's scores).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType

from distir.dialects.onnx_values import numpy_dtype
from distir.errors import DistIRError
from distir.frontends.torch_modes import as_it_is
from distir.frontends.torch_names import leaf_names
from distir.program import argument_names, entry_function, reachable_functions
from distir.unknown_sizes import is_unknown

if TYPE_CHECKING:
    import torch
    from xdsl.dialects.builtin import ModuleOp

    from distir.frontends.imported_model import ImportedModel

MOST_WORK = 2e9
"""Programs of more FLOPs, or so many elements of results, are not compared: seconds."""

_TOLERANCES = {8: 1e-4, 4: 1e-4, 2: 3e-2}
"""
How far results of that many bytes may be apart, relative to the largest number or 1: what
rounding in another order makes, with room for networks that amplify it.
"""

Array = npt.NDArray[Any]


def tell_of_differences(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    imported: ImportedModel,
    *,
    refuse: bool,
) -> None:
    """
    Runs a module in evaluation mode and the program that was imported from it on the example
    inputs. If the results differ by more than rounding does, raises DistIRError or, unless
    it is to `refuse`, warns. Programs that take long or lack weights are not compared.
    """
    if imported.valueless or _work(imported.module) > MOST_WORK:
        return
    wanted = _outputs(module, args, kwargs)
    found = _results(imported, _named(module, args, kwargs))
    if found is None or len(found) != len(wanted):
        return
    for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
        problem = _difference(one, np.asarray(other))
        if problem is None:
            continue
        message = (
            f"PyTorch's older exporter writes {type(module).__name__} as a program that "
            f"computes something else on the example inputs: result {index} {problem}"
        )
        if refuse:
            raise DistIRError(
                f"{message}; change the part that the newer exporter cannot write, or "
                f'take the program as it is with exporter="torchscript"'
            )
        warnings.warn(message, stacklevel=4)


def _work(module: ModuleOp) -> float:
    """Returns the FLOPs of a program and the elements of all results."""
    from distir.sharding.rule import rule_for

    total = 0.0
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            values = [*op.operands, *op.results]
            if any(is_unknown(value.type) for value in values):
                continue
            total += rule_for(op).flops
            for result in op.results:
                if isinstance(result.type, TensorType):
                    total += float(np.prod(result.type.get_shape()))
    return total


def _named(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Returns the tensors among the inputs, by the names that their arguments have."""
    import torch
    from torch.utils import _pytree

    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    names = leaf_names(dict(bound.arguments), "input")
    leaves = _pytree.tree_leaves((tuple(args), dict(kwargs)))
    pairs = zip(names, leaves, strict=True)
    return {name: leaf for name, leaf in pairs if isinstance(leaf, torch.Tensor)}


def _outputs(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Array]:
    """Returns what the module computes in evaluation mode; the module stays as it was."""
    import torch
    from torch.utils import _pytree

    own = _pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().clone(), (tuple(args), dict(kwargs))
    )
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), as_it_is(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = module(*own[0], **own[1])
    finally:
        for part, mode in modes.items():
            part.training = mode
    return [_array(x) for x in _pytree.tree_leaves(output)]


def _array(value: Any) -> Array:
    """Returns a tensor as NumPy has it; floats of 16 bits in 32."""
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    is_half = value.is_floating_point() and value.element_size() == 2
    return (value.float() if is_half else value).detach().cpu().numpy()


def _results(
    imported: ImportedModel, inputs: Mapping[str, torch.Tensor]
) -> list[Any] | None:
    """Returns the results of a program; None if an argument is no input of the module."""
    from distir.interpreters.reference import run_program

    function = entry_function(imported.module)
    values: list[Array] = []
    for name, argument in zip(argument_names(function), function.args, strict=True):
        if name in imported.weights:
            values.append(imported.weights[name])
        elif name in inputs and isinstance(argument.type, TensorType):
            dtype = numpy_dtype(argument.type.element_type)
            values.append(_array(inputs[name]).astype(dtype))
        else:
            return None
    return run_program(imported.module, values)


def _difference(wanted: Array, found: Array) -> str | None:
    """Says how far apart two results are, if that is more than rounding."""
    if wanted.shape != found.shape:
        return f"has the shape {list(found.shape)} instead of {list(wanted.shape)}"
    if not np.issubdtype(wanted.dtype, np.floating):
        return None  # rounding may choose another index
    size = min(wanted.dtype.itemsize, found.dtype.itemsize)
    one, other = wanted.astype(np.float64), found.astype(np.float64)
    is_finite = np.isfinite(one)
    if not np.array_equal(is_finite, np.isfinite(other)):
        return "is infinite, or no number, elsewhere"
    largest = float(np.abs(one[is_finite]).max(initial=0.0))
    apart = float(np.abs(one - other)[is_finite].max(initial=0.0))
    if apart <= _TOLERANCES[size] * max(1.0, largest):
        return None
    return f"differs by {apart:.2g} (its largest number is {largest:.3g})"
