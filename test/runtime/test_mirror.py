"""A collective that is added: it is verified, computed, priced, and runs on real processes."""

from pathlib import Path

import numpy as np
import pytest
from runtime.test_collectives import CLUSTER, run_ranks
from support.programs import parse
from xdsl.utils.exceptions import VerifyException

from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.launch.packages import Spawner

PROGRAM = (
    CLUSTER
    + """
device.mesh @mesh on @box <"a" = 4> [2, 0, 3, 1]
#rows = #dist.layout<@mesh, [{a}, {}]>
func.func @main(%x: tensor<8x3xf32, #rows> {dist.name = "x"}) -> (tensor<8x3xf32, #rows> {dist.name = "y"}) {
  %y = collective.mirror %x over ["a"] : tensor<8x3xf32, #rows> -> tensor<8x3xf32, #rows>
  func.return %y : tensor<8x3xf32, #rows>
}
"""
)


def test_shards_are_reversed(tmp_path: Path, spawner: Spawner) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    expected = x.reshape(4, 2, 3)[::-1].reshape(8, 3)
    module = parse(PROGRAM)
    np.testing.assert_array_equal(run_program(module, [x])[0], expected)
    results = run_ranks(module, [x], tmp_path, spawner)
    np.testing.assert_array_equal(results["y"], expected)


def test_each_device_sends_its_shard() -> None:
    assert simulate(parse(PROGRAM)).communication_bytes == [24] * 4


def test_the_axis_must_split_the_operand() -> None:
    with pytest.raises(VerifyException, match="one axis that splits the operand"):
        parse(PROGRAM.replace("[{a}, {}]", "[]")).verify()
