"""Gradients of look-ups and scatters by elements, of TopK and of triangles."""

import numpy as np
import pytest
import torch
from gradients.harness import (
    GradientCase,
    check,
    integers,
    normal,
)

X = normal(3, 4)


def gather_elements(x, axis, *indices):
    indices = integers(*indices)
    return GradientCase(
        "GatherElements",
        [x, indices],
        {"axis": axis},
        torch=lambda x, i: x.gather(axis, i % x.shape[axis]),
        label=f"{list(x.shape)}-{axis}-{list(indices.shape)}",
    )


def gather_nd(x, indices, batch_dims=0):
    indices = integers(indices)

    def run(x, indices):
        grid = [
            torch.arange(n).reshape(
                [-1 if i == k else 1 for k in range(indices.ndim - 1)]
            )
            for i, n in enumerate(x.shape[:batch_dims])
        ]
        return x[(*grid, *indices.unbind(-1))]

    return GradientCase(
        "GatherND",
        [x, indices],
        {"batch_dims": batch_dims},
        torch=run,
        label=f"{list(x.shape)}-{batch_dims}-{list(indices.shape)}",
    )


def scatter_elements(axis, indices, reduction, x=X, updates=None, smooth=True):
    def run(x, indices, updates):
        indices = indices % x.shape[axis]
        if reduction == "none":
            return x.scatter(axis, indices, updates)
        return x.scatter_reduce(axis, indices, updates, IN_TORCH[reduction])

    indices = integers(indices)
    updates = normal(*indices.shape, seed=1) if updates is None else updates
    return GradientCase(
        "ScatterElements",
        [x, indices, updates],
        {"axis": axis, "reduction": reduction},
        torch=run,
        smooth=smooth,
        label=f"{axis}{reduction}{'' if smooth else '-ties'}",
    )


IN_TORCH = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_nd(x, indices, reduction):
    indices = integers(indices)
    shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    return GradientCase(
        "ScatterND",
        [x, indices, normal(*shape, seed=1)],
        {"reduction": reduction},
        torch=None
        if reduction not in ("none", "add")
        else lambda x, i, u: x.index_put(
            i.unbind(-1), u, accumulate=reduction == "add"
        ),
        label=f"{list(indices.shape)}{reduction}",
    )


def top_k(axis, k, largest):
    return GradientCase(
        "TopK",
        [X, integers([k])],
        {"axis": axis, "largest": largest},
        frozenset([1]),
        results=2,
        torch=lambda x, _: torch.topk(x, k, axis, bool(largest)),
        label=f"{axis}{k}{largest}",
    )


def triangle(upper, *k):
    function = torch.triu if upper else torch.tril
    return GradientCase(
        "Trilu",
        [normal(2, 3, 4), *map(np.array, k)],
        {"upper": upper},
        frozenset([1]),
        torch=lambda x, k=0: function(x, int(k)),
        label=f"{upper}{k}",
    )


TIES = np.array([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 3.0, 1.0]])
PLACES = [[0, 0, 1, 2, 2], [0, 1, 1, 3, 3]]
OTHERS = np.array([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 1.0, 0.5]])
"""Several that attain an extreme; no, one and two zeros among the factors of a place."""

CASES = [
    gather_elements(X, 0, [[0, 1, 2, 2], [2, 2, 0, 0]]),
    gather_elements(X, 1, [[0, 0], [-1, 2], [3, 3]]),
    gather_elements(normal(3), 0, [2, 2, 0, 1]),
    gather_nd(X, [[0], [2], [2]]),
    gather_nd(X, [[0, 1], [2, 3], [2, 3]]),
    gather_nd(normal(2, 3, 2), [[[0], [1]], [[1], [1]]]),
    gather_nd(normal(2, 3, 2), [[0], [2]], 1),
    gather_nd(normal(2, 3, 2), [[[0], [2], [2]], [[1], [1], [0]]], 1),
    gather_nd(normal(2, 2, 3), [[[0], [2]], [[1], [1]]], 2),
    *(
        scatter_elements(axis, indices, reduction)
        for axis, indices in ((0, [[0, 1, 2], [2, 0, 1]]), (-1, [[0, 3], [1, -2]]))
        for reduction in ("none", "add", "mul", "max", "min")
    ),
    scatter_elements(0, [[0, 1], [0, 1]], "add"),
    scatter_elements(0, [[0, 1], [0, 1], [0, 2]], "mul"),
    *(
        scatter_elements(1, PLACES, reduction, TIES, OTHERS, smooth=False)
        for reduction in ("mul", "max", "min")
    ),
    *(scatter_nd(X, [[0, 1], [2, 3]], reduction) for reduction in ("mul", "max")),
    *(
        scatter_nd(X, indices, reduction)
        for indices in ([[0], [2]], [[0, 1], [2, 3]])
        for reduction in ("none", "add")
    ),
    scatter_nd(X, [[1], [1]], "add"),
    *(top_k(axis, 2, largest) for axis in (0, -1) for largest in (0, 1)),
    triangle(0),
    triangle(1),
    triangle(1, 1),
    triangle(0, -1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)
