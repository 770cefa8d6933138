"""A package on a rank whose tensors are not on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from distir.parallel.rank_program import RankProgram


def test_new_tensors_of_a_call_are_on_its_device() -> None:
    """What a program makes itself, such as a tensor to receive into, is where its inputs are."""

    def results_of(body: Any, arguments: list[torch.Tensor]) -> tuple[torch.Tensor]:
        return (torch.zeros(2),)

    program = object.__new__(RankProgram)
    vars(program).update(
        device=torch.device("meta"),
        arguments={},
        results={7: None},
        _runtime=SimpleNamespace(results_of=results_of),
        _body=None,
    )
    assert program.run({})[7].device.type == "meta"
    assert torch.zeros(2).device.type == "cpu"
