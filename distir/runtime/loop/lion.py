"""Steps of Lion for several parameters. `optimizers` explains the arguments."""

from .optimizers import alike, overwritten, results


def lion(
    parameters,
    gradients,
    exp_avgs,
    *,
    learning_rate,
    weight_decay,
    beta1,
    beta2,
    in_place=False,
):
    lists, targets = overwritten((parameters, exp_avgs), in_place)
    for p, g, mean in zip(*lists[:1], gradients, *lists[1:], strict=True):
        (g,) = alike([g], [p])
        direction = (beta1 * mean).add_(g, alpha=1 - beta1).sign_()
        p.mul_(1 - learning_rate * weight_decay)
        p.sub_(direction.mul_(learning_rate))
        mean.mul_(beta2).add_(g, alpha=1 - beta2)
    return results(lists, targets)
