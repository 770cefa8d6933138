"""
Optimizer steps of ONNX. Each function takes the learning rate, the number of finished
steps and, for each parameter, its value, gradient and states. The results are all new
values, then all new states of each kind.
"""


def _by_kind(rows):
    """
    Reorders results: from one row per parameter to all new values, then all first
    states, and so on.
    """
    return tuple(value for kind in zip(*rows, strict=True) for value in kind)


def momentum(rate, step, groups, alpha, beta, mode, norm_coefficient):
    share = beta if int(step) > 0 else 1.0
    rows = []
    for value, gradient, velocity in groups:
        gradient = gradient + norm_coefficient * value
        velocity = alpha * velocity + share * gradient
        direction = gradient + alpha * velocity if mode == "nesterov" else velocity
        rows.append((value - rate * direction, velocity))
    return _by_kind(rows)


def adagrad(rate, step, groups, decay_factor, epsilon, norm_coefficient):
    rate = rate / (1 + step * decay_factor)
    rows = []
    for value, gradient, total in groups:
        gradient = gradient + norm_coefficient * value
        total = total + gradient * gradient
        rows.append((value - rate * gradient / (total.sqrt() + epsilon), total))
    return _by_kind(rows)


def adam(
    rate, step, groups, alpha, beta, epsilon, norm_coefficient, norm_coefficient_post
):
    if int(step) > 0:
        rate = rate * (1 - beta**step).sqrt() / (1 - alpha**step)
    rows = []
    for value, gradient, mean, square in groups:
        gradient = gradient + norm_coefficient * value
        mean = alpha * mean + (1 - alpha) * gradient
        square = beta * square + (1 - beta) * gradient * gradient
        value = value - rate * mean / (square.sqrt() + epsilon)
        rows.append(((1 - norm_coefficient_post) * value, mean, square))
    return _by_kind(rows)
