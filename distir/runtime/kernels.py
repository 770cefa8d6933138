"""
Calls of users' kernels. The kernels are functions in the folder `user_kernels`, which
contains copies of the users' files.
"""

import hashlib
import json
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import torch

from .runtime import ProgramError

FOLDER = "user_kernels"


@cache
def _function(module, name):
    """
    Returns function `name` of the copied user file `module`. Raises ProgramError if the
    file has changed since the package was made, or has no such function.
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


def checked(what, values, types):
    """
    Returns `values`, the results of a function: one tensor or a tuple. Raises
    ProgramError unless their shapes and element types are `types`; `what` names the
    function in the message.
    """
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if len(values) != len(types):
        raise ProgramError(
            f"{what} gives {len(values)} values; the program takes {len(types)}"
        )
    for value, (shape, dtype) in zip(values, types, strict=True):
        given = (
            (tuple(value.shape), value.dtype)
            if isinstance(value, torch.Tensor)
            else type(value)
        )
        if given != (shape, dtype):
            raise ProgramError(
                f"{what} gives {given}; the program takes {(shape, dtype)}"
            )
    return values[0] if len(values) == 1 else values


def called(function, what, types, inputs):
    """
    Returns the results of `function` for `inputs`. Raises ProgramError unless their
    shapes and element types are `types`; `what` names the function in the message.
    """
    return checked(f"kernel {what}", function(*inputs), types)


def recordable(inputs):
    """
    Returns the inputs as tensors whose gradients PyTorch can record. Tensors that were
    made in inference mode are copied.
    """
    with torch.inference_mode(False):
        return [x.clone() if x.is_inference() else x for x in inputs]


def differentiated(function, what, wrt, types, inputs):
    """
    Returns, by PyTorch's autograd, the gradients of a function's arguments that have
    the indices `wrt`. The last input is the gradient of the function's result.
    """
    *values, gradient = recordable(inputs)
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.detach().requires_grad_(i in wrt) for i, x in enumerate(values)]
        result = function(*leaves)
        wanted = [leaves[i] for i in wrt]
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            raise ProgramError(
                f"kernel {what}: PyTorch cannot differentiate what it gives; give it a "
                f"gradient of its own"
            )
        found = torch.autograd.grad(result, wanted, gradient, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    zeros = [torch.zeros_like(x) if dx is None else dx for dx, x in pairs]
    return checked(f"the gradient of {what}", zeros, types)


def gradients(function, what, wrt, types, inputs):
    """
    Returns the gradients of a kernel's arguments that have the indices `wrt`.
    `function` is the kernel's gradient function, which returns a gradient or None for
    each argument. `types` are the required shapes and element types of the gradients.
    """
    with torch.inference_mode(False), torch.no_grad():
        found = function(*recordable(inputs))
    found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(inputs) - 1:
        raise ProgramError(
            f"kernel {what} gives {len(found)} gradients; there are {len(inputs) - 1} "
            f"arguments (None stands for one that has no gradient)"
        )
    return checked(f"kernel {what}", [found[i] for i in wrt], types)


def call(module, name, types, *inputs, **options):
    """
    Returns the results of function `name` in the user's file `module`. Raises
    ProgramError if they do not have the shapes and element types `types`.
    """
    function = partial(_function(module, name), **options)
    return called(function, f"{module}:{name}", types, inputs)


def autograd(module, name, wrt, types, *inputs, **options):
    """
    Returns, by PyTorch's autograd, the gradients of those arguments of function `name`
    in the user's file `module` that have the indices `wrt`.
    """
    function = partial(_function(module, name), **options)
    return differentiated(function, f"{module}:{name}", wrt, types, inputs)


def backward(module, name, wrt, types, *inputs, **options):
    """
    Returns the gradients of a kernel's arguments that have the indices `wrt`. Function
    `name` in the user's file `module` computes the gradients.
    """
    function = partial(_function(module, name), **options)
    return gradients(function, f"{module}:{name}", wrt, types, inputs)
