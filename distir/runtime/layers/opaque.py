"""
Calls of opaque modules: modules of the training script that the import did not trace,
and that run as they are on this process's parts of tensors.
"""

import torch

from ..kernels import checked, recordable
from ..random_numbers import halves, threefry
from ..runtime import ProgramError

MODULES = {}
"""
The functions that call the modules, by the names of the modules in the program. The
training script fills the table. A function takes the inputs, the keyword arguments
`tensors`, `arguments` and `trains` of the op, and the process group over which the
module communicates, or None. It returns a tuple of tensors.
"""


def _function(name):
    """
    Returns the function that calls the module `name`. Raises ProgramError if the script
    has no such module.
    """
    if name not in MODULES:
        raise ProgramError(
            f"the opaque module {name!r} is part of the training script that the program "
            f"was made in; run the program there, with distir.parallelize"
        )
    return MODULES[name]


def _generator(key, drawn, device):
    """
    A context manager in which `key`, a pair of integers, and the integer tensors in
    `drawn` determine all random numbers. Restores PyTorch's generators afterwards. Has
    no effect if `key` is None.
    """
    if key is None:
        return torch.random.fork_rng(enabled=False)
    # The seed is a number of the host.
    made = torch.tensor(key[0], device="cpu"), torch.tensor(key[1], device="cpu")
    for number in drawn:
        made = threefry(made, *halves(number.detach().cpu()))
    devices = [device] if device.type == "cuda" else []
    return _Seeded(devices, int(made[0]) << 31 ^ int(made[1]))


class _Seeded:
    """A context manager that seeds PyTorch's generators, and restores them."""

    def __init__(self, devices, seed):
        self.saved = torch.random.fork_rng(devices=devices)
        self.seed = seed

    def __enter__(self):
        self.saved.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *error):
        return self.saved.__exit__(*error)


def _handle(name, group):
    """
    Returns PyTorch's process group for `group`, or None if `group` is None or has only
    one process. Raises ProgramError if the ranks of the group are not in ascending
    order.
    """
    if group is None or group.size == 1:
        return None
    if not group.in_order:
        raise ProgramError(
            f"{name!r} communicates over ranks {group.ranks}, which are not in ascending "
            f"order; choose a mesh whose order is that of the ranks"
        )
    return group.handle


def call(name, types, inputs, how, key=None, drawn=(), group=None):
    """
    Returns the results of the module `name`. `inputs` are this process's parts of its
    arguments, parameters and buffers. `how` are keyword arguments of its function.
    `key` and `drawn` determine its random numbers. Raises ProgramError if the module is
    not available, or if the results do not have the shapes and element types in
    `types`.
    """
    function = _function(name)
    with _generator(key, drawn, inputs[0].device):
        found = function(inputs, group=_handle(name, group), **how)
    return checked(f"opaque module {name!r}", found, types)


def gradient(
    name,
    types,
    gradients,
    inputs,
    how,
    wrt,
    given,
    copies,
    key=None,
    drawn=(),
    group=None,
):
    """
    Returns the gradients of the inputs at the indices `wrt` of the module `name`. The
    module runs once more, with the same random numbers, and PyTorch differentiates it.

    `gradients` holds the gradients of the module's results at the indices `given`.
    `copies` has, for each of these results, the number of processes of `group` that
    hold all of it. The result's gradient is divided by this number, because the
    gradients of inputs are summed over the processes. Raises ProgramError if the module
    is not available or cannot be differentiated.
    """
    function = _function(name)
    inputs, gradients = recordable(inputs), recordable(gradients)
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.detach().requires_grad_(i in wrt) for i, x in enumerate(inputs)]
        with _generator(key, drawn, inputs[0].device):
            results = function(leaves, group=_handle(name, group), **how)
            pairs = [
                (results[i], dy if n == 1 else dy / n)
                for i, dy, n in zip(given, gradients, copies, strict=True)
                if results[i].requires_grad
            ]
            if not pairs:
                raise ProgramError(
                    f"PyTorch cannot differentiate what opaque module {name!r} gives"
                )
            wanted = [leaves[i] for i in wrt]
            found = torch.autograd.grad(
                [y for y, _ in pairs],
                wanted,
                [dy for _, dy in pairs],
                allow_unused=True,
            )
    zeros = [
        torch.zeros_like(x) if dx is None else dx
        for dx, x in zip(found, wanted, strict=True)
    ]
    return checked(f"the gradient of opaque module {name!r}", zeros, types)
