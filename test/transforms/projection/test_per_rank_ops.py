"""Ops of one rank's program are refused wherever a program for all ranks is expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import failure, write_program
from support.programs import parse

from distir.errors import DistIRError
from distir.sharding.verification import verify_distribution
from distir.transforms.projection import project

MIXED = """
device.mesh @mesh on @c <d = 2> [0 to 2]
func.func @main(%x: tensor<4xi64, #dist.layout<@mesh>>) -> tensor<4xi64, #dist.layout<@mesh>> {
  BODY
  func.return %y : tensor<4xi64, #dist.layout<@mesh>>
}
"""
COORDINATE = """
  %c = collective.coordinate over [d] {index = 1 : i64, mesh = @mesh} : tensor<i64>
  %y = onnx.Add(%x, %c) : (tensor<4xi64, #dist.layout<@mesh>>, tensor<i64>) -> tensor<4xi64, #dist.layout<@mesh>>
"""
RECEIVED = """
  %r = collective.recv from 1 : tensor<4xi64>
  %y = onnx.Relu(%x) : (tensor<4xi64, #dist.layout<@mesh>>) -> tensor<4xi64, #dist.layout<@mesh>>
"""


@pytest.mark.parametrize("body", [COORDINATE, RECEIVED])
def test_ops_of_one_rank_in_a_distributed_program(tmp_path: Path, body: str):
    text = MIXED.replace("BODY", body)
    with pytest.raises(DistIRError):
        verify_distribution(parse(text))
    with pytest.raises(DistIRError, match="belongs to the program of one rank already"):
        project(parse(text), 0)
    path = write_program(tmp_path / "m.mlir", text)
    assert "belongs to the program of one rank" in failure("check", path, path)
    for command in (
        ("run", path, "--backend", "gloo"),
        ("lower", path, "-o", tmp_path),
    ):
        assert "other ops of the program belong to one rank" in failure(*command)


def test_coordinate_in_a_sequential_program(tmp_path: Path):
    text = MIXED.replace("BODY", COORDINATE).replace(", #dist.layout<@mesh>", "")
    path = write_program(tmp_path / "m.mlir", text)
    assert "belongs to the program of one rank" in failure("check", path, path)
