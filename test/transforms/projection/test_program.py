"""Pass `project`: run lengths of several axes, devices of a program."""

from itertools import product, starmap

import numpy as np
import pytest
from support.cases import named
from support.programs import parse

from distir.dialects.dist import Shard
from distir.errors import DistIRError
from distir.sharding.layout import joint_run, shard_indices
from distir.sharding.mesh import Mesh
from distir.transforms.projection import devices_of, project

MESH = Mesh("mesh", (("a", 2), ("b", 3)), tuple(range(6)))


def test_joint_run_is_what_the_devices_hold() -> None:
    """One split over the joint group, or an error: never another split."""
    tried = 0
    for axes in (("a",), ("b",), ("a", "b"), ("b", "a")):
        for runs in product((None, 1, 2, 3, 4, 6, 12), repeat=len(axes)):
            shards = tuple(starmap(Shard, zip(axes, runs, strict=True)))
            with named(shards):
                tried += assert_joint_run_is_what_the_devices_hold(shards)
    assert tried > 50


def assert_joint_run_is_what_the_devices_hold(shards: tuple[Shard, ...]) -> bool:
    """Returns whether the shards are a layout, which alone is checked."""
    size = 72
    left = size
    for shard in shards:
        n = MESH.size(shard.axis)
        if left % n or (shard.run is not None and left % (shard.run * n)):
            return False
        left //= n
    count = size // left
    try:
        run = joint_run(size, shards, MESH)
    except ValueError:
        run = None
        expressible = False
    else:
        expressible = True
    own = run if run is not None else size // count
    joint = np.arange(size).reshape(-1, count, own)
    places = list(product(*(range(MESH.size(s.axis)) for s in shards)))
    same = all(
        np.array_equal(
            joint[:, i].reshape(-1),
            shard_indices(
                size,
                shards,
                MESH,
                {s.axis: c for s, c in zip(shards, place, strict=True)},
            ),
        )
        for i, place in enumerate(places)
    )
    if expressible:
        assert same
    else:
        for r in range(1, size // count + 1):
            if size % (r * count) == 0:
                joint = np.arange(size).reshape(-1, count, r)
                assert not all(
                    np.array_equal(
                        joint[:, i].reshape(-1),
                        shard_indices(
                            size,
                            shards,
                            MESH,
                            {s.axis: c for s, c in zip(shards, place, strict=True)},
                        ),
                    )
                    for i, place in enumerate(places)
                )
    return True


SEQUENTIAL = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = onnx.Relu(%x) : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}
"""


def test_a_sequential_program_is_its_own_projection() -> None:
    module = parse(SEQUENTIAL)
    assert devices_of(module) == (0,)
    assert project(module, 0).is_structurally_equivalent(module)
    with pytest.raises(DistIRError, match="does not run on device 1"):
        project(module, 1)


def test_an_operand_from_elsewhere() -> None:
    module = parse(
        """
        device.mesh @one on @box <> [0]
        device.mesh @two on @box <> [1]
        func.func @main(%x: tensor<2xf32, #dist.layout<@one>>) -> tensor<2xf32, #dist.layout<@two>> {
          %y = onnx.Relu(%x) : (tensor<2xf32, #dist.layout<@one>>) -> tensor<2xf32, #dist.layout<@two>>
          func.return %y : tensor<2xf32, #dist.layout<@two>>
        }"""
    )
    with pytest.raises(DistIRError, match=r"onnx\.Relu %y: operand 0 has type"):
        project(module, 1)


def test_a_missing_mesh() -> None:
    module = parse(SEQUENTIAL.replace("2xf32", "2xf32, #dist.layout<@gone>"))
    with pytest.raises(DistIRError, match=r"no device\.mesh @gone"):
        project(module, 0)
