"""Gradients of sampling an image at the points of a grid."""

import torch


def _backward(dy, x, grid, options, wanted):
    kernels = torch.ops.aten
    kernel = (
        kernels.grid_sampler_2d_backward
        if x.dim() == 4
        else kernels.grid_sampler_3d_backward
    )
    mask = [wanted == 0, wanted == 1]
    return kernel(dy.contiguous(), x, grid, *options, mask)[wanted]


def grid_sample_grad_input(dy, shape, grid, *options):
    # The kernel reads only the shape of the image whose gradient it computes.
    return _backward(dy, dy.new_empty(shape), grid, options, 0)


def grid_sample_grad_grid(dy, x, grid, *options):
    return _backward(dy, x, grid, options, 1)
