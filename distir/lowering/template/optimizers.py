"""Updates of one parameter; the formulas of torch.optim, out of place."""

import torch


def sgd(parameter, gradient, learning_rate, weight_decay):
    gradient = gradient.to(parameter.dtype)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    return parameter.sub(gradient, alpha=learning_rate)


def sgd_momentum(
    parameter, gradient, buffer, learning_rate, momentum, weight_decay, nesterov=False
):
    gradient = gradient.to(parameter.dtype)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    buffer = (buffer * momentum).add_(gradient)
    gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
    return parameter.sub(gradient, alpha=learning_rate), buffer


def _adam(
    parameter, gradient, exp_avg, exp_avg_sq, step, learning_rate, beta1, beta2, epsilon
):
    exp_avg = torch.lerp(exp_avg, gradient, 1 - beta1)
    exp_avg_sq = (exp_avg_sq * beta2).addcmul_(gradient, gradient, value=1 - beta2)
    # In f64, as PyTorch's Python numbers: 1 - beta2 ** t is small at first.
    time = (step + 1).to(torch.float64)
    size = -learning_rate / (1 - beta1**time)
    scale = (1 - beta2**time).sqrt()
    # In place: a 0-d tensor divided by another would take the type of the wider one.
    denominator = exp_avg_sq.sqrt().div_(scale).add_(epsilon)
    return parameter + (exp_avg / denominator).mul_(size), exp_avg, exp_avg_sq


def adam(parameter, gradient, exp_avg, exp_avg_sq, step, *, weight_decay, **settings):
    gradient = gradient.to(parameter.dtype)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    return _adam(parameter, gradient, exp_avg, exp_avg_sq, step, **settings)


def adamw(
    parameter,
    gradient,
    exp_avg,
    exp_avg_sq,
    step,
    *,
    learning_rate,
    weight_decay,
    **settings,
):
    gradient = gradient.to(parameter.dtype)
    parameter = parameter * (1 - learning_rate * weight_decay)
    return _adam(
        parameter, gradient, exp_avg, exp_avg_sq, step, learning_rate, **settings
    )
