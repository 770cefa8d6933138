"""
Steps of Muon. `optimizers` explains the arguments of the functions for several
parameters.
"""

import torch

from .optimizers import alike, overwritten, results


def muon_momentum(buffers, gradients, *, momentum, nesterov=False, in_place=False):
    if not isinstance(in_place, bool):
        in_place = in_place[1:]
    (own,), targets = overwritten((buffers,), in_place)
    directions = []
    for g, buffer in zip(gradients, own, strict=True):
        (g,) = alike([g], [buffer])
        buffer.lerp_(g, 1 - momentum)
        directions.append(g.lerp(buffer, momentum) if nesterov else buffer.clone())
    return [*directions, *results([own], targets)]


def orthogonalize(x, coefficients, epsilon, steps):
    """
    Returns the matrices `x` [..., m, n] with singular values near 1, by Newton-Schulz
    steps.
    """
    a, b, c = coefficients
    *stack, rows, columns = x.shape
    x = x.reshape(-1, rows, columns) if len(stack) > 1 else x
    product = torch.baddbmm if x.dim() == 3 else torch.addmm
    if rows > columns:
        x = x.mT
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    x = x / norm.clamp(min=epsilon)
    for _ in range(steps):
        gram = x @ x.mT
        factor = product(gram, gram, gram, beta=b, alpha=c)
        x = product(x, factor, x, beta=a)
    if rows > columns:
        x = x.mT
    return x.reshape(*stack, rows, columns)


def muon(
    parameters,
    directions,
    *,
    learning_rate,
    weight_decay,
    scale,
    in_place=False,
):
    (own,), targets = overwritten((parameters,), in_place)
    for p, direction in zip(own, directions, strict=True):
        p.mul_(1 - learning_rate * weight_decay)
        p.sub_(direction.to(p.dtype) * (learning_rate * scale))
    return results([own], targets)
