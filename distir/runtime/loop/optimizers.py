"""
Updates of several parameters at once by PyTorch's own kernels.

Arguments and results are lists. `in_place` says which lists the function may overwrite
and return: one boolean for all lists, or one for the parameters and one for each kind
of state.
"""

from functools import partial

import torch

_CAST_BYTES = 1 << 26
"""
The largest size in bytes of gradients that are cast for one kernel call. The gradient
of a single parameter may be larger.
"""


def overwritten(lists, in_place):
    """
    Returns the tensors that the kernel overwrites: the tensors in `lists` if `in_place`
    allows it and they are contiguous, else copies. Also returns, for each list, the
    tensors to which the results must be written, or None if the list may not be
    overwritten.
    """
    if isinstance(in_place, bool):
        in_place = (in_place,) * len(lists)
    own = [
        [x if may and x.is_contiguous() else _copy(x) for x in each]
        for each, may in zip(lists, in_place, strict=True)
    ]
    targets = [
        given if may else None for given, may in zip(lists, in_place, strict=True)
    ]
    return own, targets


def _copy(x):
    return x.clone(memory_format=torch.contiguous_format)


def alike(gradients, parameters):
    """Returns the gradients, converted to the element types of the parameters."""
    return [
        g.to(p.dtype).contiguous() for g, p in zip(gradients, parameters, strict=True)
    ]


def scalar(number, tensor):
    """
    Returns `number` as a scalar tensor, in the type in which a formula computes for
    `tensor`: 32 bits for 16-bit floats, else the tensor's own type.
    """
    return number.to(torch.promote_types(tensor.dtype, torch.float32))


def _together(parameters, gradients):
    """
    Yields slices of the list of parameters; one kernel call updates each slice. If all
    gradients have their parameter's type there is one slice; otherwise slices are
    limited in size, because gradients are converted.
    """
    first = size = 0
    for i, (g, p) in enumerate(zip(gradients, parameters, strict=True)):
        cast = 0 if g.dtype == p.dtype else p.nbytes
        if i > first and size + cast > _CAST_BYTES:
            yield slice(first, i)
            first, size = i, 0
        size += cast
    yield slice(first, len(parameters))


def results(made, targets):
    """
    Returns the new tensors of all lists as one list. Writes a result to its tensor in
    `targets`, if there is one.
    """
    found = []
    for each, target in zip(made, targets, strict=True):
        for i, new in enumerate(each):
            if target is not None and target[i] is not new:
                target[i].copy_(new)
        found += each if target is None else target
    return found


def sgd(
    parameters,
    gradients,
    buffers=None,
    *,
    learning_rate,
    weight_decay,
    momentum=0.0,
    nesterov=False,
    in_place=False,
):
    given = (parameters,) if buffers is None else (parameters, buffers)
    (parameters, *states), targets = overwritten(given, in_place)
    for part in _together(parameters, gradients):
        torch._fused_sgd_(
            parameters[part],
            alike(gradients[part], parameters[part]),
            *([buffers[part] for buffers in states] or [[]]),
            lr=learning_rate,
            weight_decay=weight_decay,
            momentum=momentum,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
            is_first_step=False,
        )
    return results([parameters, *states], targets)


def _adam(
    kernel,
    parameters,
    gradients,
    exp_avgs,
    exp_avg_sqs,
    step,
    *,
    learning_rate,
    epsilon,
    in_place=False,
    **settings,
):
    lists, targets = overwritten((parameters, exp_avgs, exp_avg_sqs), in_place)
    own, exp_avgs, exp_avg_sqs = lists
    done = (step + 1).to(torch.float32)
    for part in _together(own, gradients):
        kernel(
            own[part],
            alike(gradients[part], own[part]),
            exp_avgs[part],
            exp_avg_sqs[part],
            [],
            [done] * len(own[part]),
            lr=learning_rate,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
            **settings,
        )
    return results(lists, targets)


adam = partial(_adam, torch._fused_adam_)
adamw = partial(_adam, torch._fused_adamw_)
