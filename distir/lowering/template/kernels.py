"""
Calls of users' kernels: functions of the files in `user_kernels`, which are copies of the
user's own.
"""

import hashlib
import json
from functools import cache
from importlib import import_module
from pathlib import Path

import torch

from .runtime import ProgramError

FOLDER = "user_kernels"


@cache
def _function(module, name):
    """
    Returns a function of a user's file, which must be the file that the package was made
    with.
    """
    folder = Path(__file__).parent
    file = folder / FOLDER / f"{module}.py"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if manifest["kernels"].get(module) != digest:
        raise ProgramError(
            f"{file} is not the file that the package was made with; lower the program "
            f"again, with the file that it is to have"
        )
    loaded = import_module(f"{__package__}.{FOLDER}.{module}")
    found = getattr(loaded, name, None)
    if not callable(found):
        raise ProgramError(f"{file} has no function {name!r}")
    return found


def _checked(what, values, types):
    """Checks that what a function returned are tensors of these types, and returns it."""
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if len(values) != len(types):
        raise ProgramError(
            f"kernel {what} gives {len(values)} values; the program takes {len(types)}"
        )
    for value, (shape, dtype) in zip(values, types, strict=True):
        given = (
            (tuple(value.shape), value.dtype)
            if isinstance(value, torch.Tensor)
            else type(value)
        )
        if given != (shape, dtype):
            raise ProgramError(
                f"kernel {what} gives {given}; the program takes {(shape, dtype)}"
            )
    return values[0] if len(values) == 1 else values


def call(module, name, types, *inputs):
    """Returns what a kernel computes from these inputs, of these types."""
    found = _function(module, name)(*inputs)
    return _checked(f"{module}:{name}", found, types)


def _recordable(inputs):
    """
    Returns the inputs as tensors for which PyTorch can record gradients: those that were
    made in inference mode are copied.
    """
    with torch.inference_mode(False):
        return [x.clone() if x.is_inference() else x for x in inputs]


def autograd(module, name, wrt, types, *inputs):
    """
    Returns the gradients of some arguments of a kernel, by index, through PyTorch. The last
    input is the gradient of the kernel's result.
    """
    *values, gradient = _recordable(inputs)
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.detach().requires_grad_(i in wrt) for i, x in enumerate(values)]
        result = _function(module, name)(*leaves)
        wanted = [leaves[i] for i in wrt]
        if not result.requires_grad:
            raise ProgramError(
                f"kernel {module}:{name}: PyTorch cannot differentiate it; give it a "
                f"gradient of its own"
            )
        found = torch.autograd.grad(result, wanted, gradient, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    zeros = [torch.zeros_like(x) if dx is None else dx for dx, x in pairs]
    return _checked(f"the gradient of {module}:{name}", zeros, types)


def backward(module, name, wrt, types, *inputs):
    """
    Returns the gradients of some arguments of a kernel, by index, from a user's function,
    which returns one for each argument.
    """
    what = f"{module}:{name}"
    with torch.inference_mode(False), torch.no_grad():
        found = _function(module, name)(*_recordable(inputs))
    found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(inputs) - 1:
        raise ProgramError(
            f"{what} gives {len(found)} gradients; the kernel has {len(inputs) - 1} "
            f"arguments (None stands for one that has no gradient)"
        )
    return _checked(what, [found[i] for i in wrt], types)
