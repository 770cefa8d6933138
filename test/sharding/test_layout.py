"""Which elements of a tensor a device holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.command_line import succeed, write_program

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.sharding.layout import (
    assemble,
    check_layout,
    local_shape,
    places_the_same,
    take_shard,
)
from distir.sharding.mesh import Mesh

MESH = Mesh("m", (("d", 2), ("t", 3)), tuple(range(6)))
SPLITS = [
    (Shard("t"),),
    (Shard("d"), Shard("t")),
    (Shard("t", 1),),
    (Shard("d", 2), Shard("t", 1)),
]

EMPTY = """
func.func @main(%x: tensor<4x0xf32> {dist.role = "input", dist.name = "x"},
                %y: tensor<4x3xf32> {dist.role = "input", dist.name = "y"})
    -> (tensor<4x3xf32>, tensor<4x0xf32>, tensor<4xf32>) {
  %c = onnx.Concat(%x, %y) {axis = 1 : i64} : (tensor<4x0xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %r = onnx.Relu(%x) : (tensor<4x0xf32>) -> tensor<4x0xf32>
  %a = onnx.Constant() {value = dense<[1]> : tensor<1xi64>} : () -> tensor<1xi64>
  %s = onnx.ReduceSum(%x, %a) {keepdims = 0 : i64} : (tensor<4x0xf32>, tensor<1xi64>) -> tensor<4xf32>
  func.return %c, %r, %s : tensor<4x3xf32>, tensor<4x0xf32>, tensor<4xf32>
}
"""


@pytest.mark.parametrize("size", [0, 12])
@pytest.mark.parametrize("shards", SPLITS, ids=str)
def test_parts_make_up_the_tensor(size: int, shards: tuple[Shard, ...]) -> None:
    layout = Layout("m", ((), shards))
    check_layout((2, size), layout, MESH, "x")
    whole = np.arange(2 * size).reshape(2, size)
    parts = [take_shard(whole, layout, MESH, c) for c in MESH.coordinates]
    assert np.array_equal(assemble(parts, whole.shape, layout, MESH), whole)


def test_dimension_without_elements_is_split(tmp_path: Path) -> None:
    model, dist = write_program(tmp_path / "m.mlir", EMPTY), tmp_path / "d.mlir"
    options = ("--cluster", "cpu", "-d", "2", "-t", "2", "--shard", "x:1=t")
    succeed("distribute", model, *options, "-o", dist)
    assert "[{d}, {t}]" in dist.read_text()
    succeed("check", model, dist)


@pytest.mark.parametrize("count", [1, 3])
def test_layout_of_another_number_of_dimensions_is_refused(count: int) -> None:
    layout = Layout("m", (*[()] * (count - 1), (Shard("d"),)))
    with pytest.raises(DistIRError, match=f"is for {count} dimensions"):
        local_shape((4, 2), layout, MESH)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((Shard("d", 2), Shard("t")), (Shard("t"), Shard("d")), True),
        ((Shard("d", 1), Shard("t", 1)), (Shard("t", 2), Shard("d", 1)), True),
        ((Shard("d"), Shard("t")), (Shard("t"), Shard("d")), False),
        ((Shard("d"),), (Shard("d", 1),), False),
        ((Shard("d"),), (Shard("t"),), False),
        ((Shard("d"),), (), False),
    ],
    ids=str,
)
def test_layouts_that_place_the_same(
    one: tuple[Shard, ...], other: tuple[Shard, ...], same: bool
) -> None:
    layouts = Layout("m", (one, ())), Layout("m", (other, ()))
    assert places_the_same((12, 6), *layouts, MESH) is same
    partial = Layout("m", (one, ()), (("t", "sum"),))
    assert not places_the_same((12, 6), layouts[1], partial, MESH)
