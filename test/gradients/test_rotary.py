"""Gradients of rotary position embedding."""

import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal


def rotate(interleaved, heads, dim):
    def run(x, cos, sin, positions=None):
        flat = x.dim() == 3
        if flat:
            x = x.unflatten(2, (heads, -1)).transpose(1, 2)
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        cos, sin = cos[:, None], sin[:, None]
        turned, rest = x.split(
            [dim or x.shape[-1], x.shape[-1] - (dim or x.shape[-1])], -1
        )
        if interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned.chunk(2, -1)
        a, b = a * cos - b * sin, a * sin + b * cos
        turned = (
            torch.stack((a, b), -1).flatten(-2)
            if interleaved
            else torch.cat((a, b), -1)
        )
        out = torch.cat((turned, rest), -1)
        return out.transpose(1, 2).flatten(2) if flat else out

    return run


def rotary_case(x, heads=0, dim=0, interleaved=0, positions=None):
    batch, seq = (x[0], x[1]) if len(x) == 3 else (x[0], x[2])
    width = x[2] // heads if len(x) == 3 else x[3]
    table = (batch, seq) if positions is None else (5,)
    table = (*table, (dim or width) // 2)
    inputs = [normal(*x), normal(*table, seed=1), normal(*table, seed=2)]
    inputs += [] if positions is None else [integers(positions)]
    attributes = {
        "interleaved": interleaved,
        "num_heads": heads,
        "rotary_embedding_dim": dim,
    }
    return GradientCase(
        "RotaryEmbedding", inputs, attributes, torch=rotate(interleaved, heads, dim)
    )


POSITIONS = [[0, 1, 2], [3, 4, 1]]
CASES = [
    rotary_case((2, 2, 3, 4)),
    rotary_case((2, 2, 3, 4), interleaved=1),
    rotary_case((2, 2, 3, 6), heads=2, dim=4),
    rotary_case((2, 2, 3, 6), heads=2, dim=4, interleaved=1, positions=POSITIONS),
    rotary_case((2, 2, 3, 4), positions=POSITIONS),
    rotary_case((2, 3, 8), heads=2),
    rotary_case((2, 3, 8), heads=2, interleaved=1),
    rotary_case((2, 3, 8), heads=2, positions=POSITIONS),
    rotary_case((2, 3, 12), heads=2, dim=4, positions=[[2, 2, 2], [0, 0, 4]]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


def test_rotary_embedding_without_attributes():
    case = rotary_case((2, 2, 4, 8))
    case.attributes.clear()
    check(case)
