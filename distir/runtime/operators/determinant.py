"""
Determinants, their logarithms and gradients. 16-bit floats are computed in 32 bits.
"""

import torch


def _wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def det(x):
    return torch.linalg.det(_wide(x)).to(x.dtype)


def slogdet(x):
    sign, logarithm = torch.linalg.slogdet(_wide(x))
    return sign.to(x.dtype), logarithm.to(x.dtype)


def slogdet_grad(dlogarithm, x):
    factors, pivots = torch.linalg.lu_factor_ex(_wide(x))[:2]
    scaled = torch.diag_embed(_wide(dlogarithm).unsqueeze(-1).expand(x.shape[:-1]))
    # The inverse of the transposed matrix; without an error for singular ones.
    return torch.linalg.lu_solve(factors, pivots, scaled, adjoint=True).to(x.dtype)
