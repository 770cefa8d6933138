"""
Updates of several parameters at once, by PyTorch's own kernels.

Arguments and results are lists. With `in_place` the given parameters and states are
overwritten and returned; else the results are new.
"""

from functools import partial

import torch


def _prepared(gradients, *lists, in_place):
    """
    Returns the gradients in the type of the parameters, and tensors that the kernel may
    overwrite.
    """
    lists = [[_own(x, in_place) for x in each] for each in lists]
    gradients = [
        g.to(p.dtype).contiguous() for g, p in zip(gradients, lists[0], strict=True)
    ]
    return gradients, *lists


def _own(x, in_place):
    if in_place and x.is_contiguous():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _results(given, made, in_place):
    """
    Returns the new tensors; with `in_place`, those that kernels cannot overwrite are
    overwritten here.
    """
    if not in_place:
        return made
    for x, new in zip(given, made, strict=True):
        if new is not x:
            x.copy_(new)
    return given


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
    gradients, parameters, *states = _prepared(gradients, *given, in_place=in_place)
    torch._fused_sgd_(
        parameters,
        gradients,
        *(states or [[]]),
        lr=learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )
    made = parameters + [x for each in states for x in each]
    return _results([x for each in given for x in each], made, in_place)


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
    given = (*parameters, *exp_avgs, *exp_avg_sqs)
    gradients, parameters, exp_avgs, exp_avg_sqs = _prepared(
        gradients, parameters, exp_avgs, exp_avg_sqs, in_place=in_place
    )
    done = (step + 1).to(torch.float32)
    kernel(
        parameters,
        gradients,
        exp_avgs,
        exp_avg_sqs,
        [],
        [done] * len(parameters),
        lr=learning_rate,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
        **settings,
    )
    return _results(given, parameters + exp_avgs + exp_avg_sqs, in_place)


adam = partial(_adam, torch._fused_adam_)
adamw = partial(_adam, torch._fused_adamw_)
