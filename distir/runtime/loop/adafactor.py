"""
Steps of Adafactor for several parameters. `optimizers` explains the arguments of
`adafactor`.
"""

import torch

from .optimizers import overwritten, results, scalar


def factor_sums(gradient, dtype):
    """
    Returns the sums of the squares of `gradient` over each row and over each column.
    """
    squares = gradient.to(dtype).square()
    return squares.sum(-1, keepdim=True), squares.sum(-2, keepdim=True)


def second_moment(moment, sums, step, count, beta2_decay):
    weight = scalar((step + 1).to(torch.float64) ** beta2_decay, moment)
    return moment.lerp((sums / count).to(moment.dtype), weight)


def factored_direction(gradient, rows, columns, total, count, epsilon):
    mean = (total / count).clamp(min=epsilon)
    estimate = (rows * (columns / mean)).clamp_(min=epsilon * epsilon)
    return estimate.rsqrt_().mul_(gradient)


def adafactor(
    parameters,
    directions,
    parameter_squares,
    direction_squares,
    step,
    *,
    learning_rate,
    weight_decay,
    clip_threshold,
    epsilon,
    count,
    relative_step=False,
    in_place=False,
):
    (own,), targets = overwritten((parameters,), in_place)
    bound = ((step + 1).to(torch.float64) ** -0.5).clamp(max=learning_rate)
    squares = zip(parameter_squares, direction_squares, strict=True)
    for p, direction, (weight, length) in zip(own, directions, squares, strict=True):
        rate = learning_rate
        if relative_step:
            rate = (weight / count).sqrt().clamp(min=epsilon) * bound
        rate = rate / ((length / count).sqrt() / clip_threshold).clamp(min=1)
        p.mul_(1 - learning_rate * weight_decay)
        p.sub_(scalar(rate, p) * direction)
    return results([own], targets)
