"""Steps of LAMB for several parameters. `optimizers` explains the arguments."""

import torch

from .optimizers import alike, overwritten, results, scalar


def lamb_direction(
    parameters,
    gradients,
    exp_avgs,
    exp_avg_sqs,
    step,
    *,
    weight_decay,
    beta1,
    beta2,
    epsilon,
    in_place=False,
):
    if not isinstance(in_place, bool):
        in_place = in_place[1:]
    states, targets = overwritten((exp_avgs, exp_avg_sqs), in_place)
    time = (step + 1).to(torch.float64)
    directions = []
    for p, g, mean, square in zip(parameters, gradients, *states, strict=True):
        (g,) = alike([g], [p])
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = scalar((1 - beta2**time).sqrt(), p)
        divisor = square.sqrt().div_(root).add_(epsilon)
        direction = (mean / divisor).div_(scalar(1 - beta1**time, p))
        directions.append(direction.add_(p * weight_decay))
    return [*directions, *results(states, targets)]


def lamb(
    parameters,
    directions,
    parameter_squares,
    direction_squares,
    *,
    learning_rate,
    in_place=False,
):
    (own,), targets = overwritten((parameters,), in_place)
    squares = zip(parameter_squares, direction_squares, strict=True)
    for p, direction, (weight, length) in zip(own, directions, squares, strict=True):
        trust = (weight / length.where(length > 0, 1)).sqrt()
        trust = trust.where((length > 0) & (weight > 0), 1)
        p.sub_(scalar(trust * learning_rate, p) * direction)
    return results([own], targets)
