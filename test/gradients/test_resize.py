"""The gradient of resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients.harness import GradientCase, backward_program, check, normal

from distir.errors import DistIRError


def resize(
    shape: tuple[int, ...],
    scales: list[float] | None,
    sizes: list[int] | None = None,
    *,
    torch_mode: str | None = None,
    align_corners: bool | None = None,
    **attributes: Any,
) -> GradientCase:
    """A case whose inputs are x, no region, and scales or sizes."""
    reference = None
    if torch_mode is not None:

        def reference(x: torch.Tensor, *_: Any) -> torch.Tensor:
            size = sizes or [
                int(n * s) for n, s in zip(shape, scales or [], strict=True)
            ]
            return F.interpolate(
                x, size[2:], mode=torch_mode, align_corners=align_corners
            )

    given = [None if scales is None else np.array(scales, np.float32)]
    if sizes is not None:
        given.append(np.array(sizes))
    places = tuple(2 + i for i, v in enumerate(given) if v is not None)
    return GradientCase(
        "Resize",
        [normal(*shape), None, *given],
        attributes,
        constants=places,
        torch=reference,
        tolerance=1e-6,
    )


FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CORNERS = {"coordinate_transformation_mode": "align_corners"}
CASES = [
    resize((2, 3, 4, 3), [1, 1, 2, 3], torch_mode="nearest", mode="nearest", **FLOOR),
    resize((2, 3, 4), [1, 1, 2], torch_mode="nearest", mode="nearest", **FLOOR),
    resize((1, 2, 2, 3, 2), [1, 1, 2, 1, 2], torch_mode="nearest", mode="nearest", **FLOOR),
    resize((1, 2, 5, 4), None, [1, 2, 3, 7], mode="nearest"),
    resize((2, 3, 4, 3), [1, 1, 2, 2], torch_mode="bilinear", align_corners=False, mode="linear"),
    resize((2, 3, 4, 3), None, [2, 3, 7, 5], torch_mode="bilinear", align_corners=True, mode="linear", **CORNERS),
    resize((1, 2, 5), [1, 1, 1.7], mode="linear"),
    resize((1, 2, 5), None, [1, 2, 8], torch_mode="linear", align_corners=False, mode="linear"),
    resize((2, 2, 5, 4), [1, 1, 2, 2], torch_mode="bicubic", align_corners=False, mode="cubic", cubic_coeff_a=-0.75),
    resize((1, 2, 6, 6), [1, 1, 0.5, 0.5], mode="linear", antialias=1),
    resize((1, 2, 4, 4), [1, 1, 2, 2], mode="cubic", exclude_outside=1),
    resize((2, 4, 3), None, [5], mode="linear", axes=[1]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case: GradientCase) -> None:
    check(case)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (
            resize((1, 1, 4, 4), None, [1, 1, 4, 8], mode="linear", keep_aspect_ratio_policy="not_larger"),
            "keeps the ratio of its sizes",
        ),
    ],
)  # fmt: skip
def test_what_has_no_gradient(case: GradientCase, told: str) -> None:
    with pytest.raises(DistIRError, match=told):
        backward_program(case, frozenset([0]))
