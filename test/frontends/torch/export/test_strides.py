"""`as_strided` is imported as the elements that it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import distir
from distir.errors import DistIRError
from distir.interpreters.reference import run_program


class _Of(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(2 * x)


def _windows(x: Tensor) -> Tensor:
    return x.as_strided((4, 3, 2), (6, 1, 3))


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "windows of each row": (_windows, (4, 6)),
    "windows across rows": (lambda x: x.as_strided((5, 4), (3, 1), 2), (4, 6)),
    "all in another shape": (lambda x: x.as_strided((4, 2, 3), (6, 3, 1)), (4, 6)),
    "transposed": (lambda x: x.as_strided((6, 4), (1, 6)), (4, 6)),
    "channels last": (
        lambda x: x.contiguous(memory_format=torch.channels_last).as_strided(
            (4, 6, 2), (24, 1, 6)
        ),
        (4, 6, 2, 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_takes_what_pytorch_takes(case: str) -> None:
    function, shape = CASES[case]
    x = torch.randn(shape)
    program = distir.import_model(_Of(function), (x,))
    (found,) = run_program(program.module, [x.numpy()])
    np.testing.assert_array_equal(found, function(2 * x).numpy())


def test_rows_stay_apart() -> None:
    program = distir.import_model(_Of(_windows), (torch.randn(4, 6),))
    plan = distir.distribute(program, cluster="cpu", d=2)
    assert distir.check(program, plan)
    assert not [op for op in plan.module.walk() if op.name.startswith("collective.")]


def test_part_of_a_tensor_is_refused() -> None:
    module = _Of(lambda x: x[1:].as_strided((2, 2), (1, 1), 6))
    with pytest.raises(
        DistIRError, match=r"as_strided .* call contiguous\(\) before it"
    ):
        distir.import_model(module, (torch.randn(4, 6),))
