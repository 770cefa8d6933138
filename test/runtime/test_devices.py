"""The device of the tensors that programs make."""

import ast
from pathlib import Path

import pytest
import torch

from distir.runtime import devices, modules

RUNTIME = Path(devices.__file__).parent
MAKERS = "arange as_tensor empty eye full linspace ones rand randint randn tensor zeros"


def makers_without_device(text: str) -> list[int]:
    """Lines with calls of PyTorch that make a tensor on the default device."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in MAKERS.split()
        and not any(keyword.arg == "device" for keyword in node.keywords)
    ]


def test_every_maker_in_a_step_is_told_its_device() -> None:
    """A default device would cost every function of PyTorch a call of Python."""
    assert makers_without_device("torch.zeros(2)\ntorch.ones(3, device=here())") == [1]
    rooms = ("communication", "layers", "operators")
    found = [
        f"{file.name}:{line}"
        for room in rooms
        for file in sorted((RUNTIME / room).glob("*.py"))
        for line in makers_without_device(file.read_text(encoding="utf-8"))
    ]
    # A coordinate that is a number already, and is moved at once.
    assert [name.partition(":")[0] for name in found] == ["drawing_kernel.py"]


class Making(modules.RankModule):
    """A program that makes a tensor."""

    def forward(self) -> torch.Tensor:
        return torch.zeros(2, device=devices.here())


def test_a_program_makes_tensors_where_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "_device", torch.device("cpu"))
    here = Making()
    with torch.device("meta"):
        there = Making()
    assert there.main().device.type == "meta"
    assert here.main().device.type == "cpu"


def test_the_default_device_has_no_effect_inside() -> None:
    torch.set_default_device("meta")
    try:
        with devices.no_default():
            assert torch.zeros(2).device.type == "cpu"
        assert torch.zeros(2).device.type == "meta"
    finally:
        torch.set_default_device(None)
