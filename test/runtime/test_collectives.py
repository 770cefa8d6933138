"""Every collective on real processes, against the reference interpreter and by hand."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ml_dtypes import bfloat16
from support.programs import parse
from support.thoroughness import chosen
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.program import argument_names, entry_function

MESHES = {
    "ascending": "[0 to 4]",
    # A process group numbers its members by rank; positions on a mesh may differ.
    "shuffled": "[2, 0, 3, 1]",
}

# name: op, shape, layout before, layout after (without the mesh)
CASES = {
    "all_reduce": ("all_reduce", '["a"]', "8x4", ", partial sum {a}", ""),
    "all_reduce_both": ("all_reduce", '["a", "b"]', "8x4", ", partial sum {a, b}", ""),
    "all_reduce_max": ("all_reduce", '["b"]', "8x4", ", partial max {b}", ""),
    "gather": ("all_gather", '["b"]', "8x4", ", [{b}, {}]", ""),
    "gather_minor": ("all_gather", '["b"]', "8x4", ", [{a, b}, {}]", ", [{a}, {}]"),
    "gather_runs": ("all_gather", '["a"]', "8x12", ", [{}, {a:2}]", ""),
    "gather_inner_runs": ("all_gather", '["b"]', "4x24", ", [{}, {a, b:3}]", ", [{}, {a}]"),
    "gather_both": ("all_gather", '["a", "b"]', "8x4", ", [{a, b}, {}]", ""),
    "gather_swapped": ("all_gather", '["b", "a"]', "8x4", ", [{b, a}, {}]", ""),
    "gather_both_runs": ("all_gather", '["a", "b"]', "16x2", ", [{a:4, b:2}, {}]", ""),
    "scatter_sum": ("reduce_scatter", '["b"]', "8x4", ", partial sum {b}", ", [{b}, {}]"),
    "scatter_runs": (
        "reduce_scatter", '["a"]', "8x4", ", partial sum {a}", ", [{a:2}, {}]",
    ),
    "scatter_both": (
        "reduce_scatter", '["b", "a"]', "8x4", ", partial sum {a, b}", ", [{b, a}, {}]",
    ),
    "scatter_inner": (
        "reduce_scatter", '["b"]', "8x4", ", [{a}, {}], partial sum {b}", ", [{a, b}, {}]",
    ),
    "move": ("all_to_all", '["b"]', "8x4", ", [{b}, {}]", ", [{}, {b}]"),
    "move_runs": ("all_to_all", '["b"]', "8x12", ", [{}, {b:3}]", ", [{b:2}, {}]"),
    "move_both": ("all_to_all", '["a", "b"]', "8x8", ", [{a, b}, {}]", ", [{}, {a, b}]"),
    "move_inner": ("all_to_all", '["b"]', "8x4", ", [{a, b}, {}]", ", [{a}, {b}]"),
    "slice": ("slice", '["a"]', "8x4", "", ", [{a}, {}]"),
    "slice_runs": ("slice", '["b"]', "8x12", ", [{a}, {}]", ", [{a}, {b:3}]"),
    "slice_swapped": ("slice", '["b", "a"]', "8x4", "", ", [{}, {b, a}]"),
}  # fmt: skip

CLUSTER = """
device.cluster @box {
  device.kind @core on [0 to 4] {memory = 1000000 : i64, memory_bandwidth = 1.0e9 : f64, peak_flops = {default = 1.0e9 : f64}, launch_latency = 0.0 : f64}
  device.link @bus spans 4 {bandwidth = 1.0e9 : f64, latency = 0.0 : f64}
}
"""


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("x"))


def one_op_each(devices: str, element: str = "f32") -> ModuleOp:
    """A program that applies the op of each case to an argument of its own."""
    arguments, body, results, types = [], [], [], []
    for name, (op, axes, shape, before, after) in CASES.items():
        source = f"tensor<{shape}x{element}, #dist.layout<@mesh{before}>>"
        target = f"tensor<{shape}x{element}, #dist.layout<@mesh{after}>>"
        arguments.append(f'%{name}: {source} {{dist.name = "{name}"}}')
        body.append(
            f"%{name}_out = collective.{op} %{name} over {axes} : {source} -> {target}"
        )
        results.append(f"%{name}_out")
        types.append(target)
    named = ", ".join(
        f'{t} {{dist.name = "{n}"}}' for t, n in zip(types, CASES, strict=True)
    )
    return parse(
        CLUSTER
        + f"device.mesh @mesh on @box <a = 2, b = 2> {devices}\n"
        + f"func.func @main({', '.join(arguments)}) -> ({named}) {{\n"
        + "\n".join(body)
        + f"\nfunc.return {', '.join(results)} : {', '.join(types)}\n}}"
    )


def run_ranks(
    module: ModuleOp, arrays: Sequence[npt.NDArray[Any]], folder: Path, spawner: Spawner
) -> dict[str, npt.NDArray[Any]]:
    """The results of the program on real processes."""
    module.verify()
    names = argument_names(entry_function(module))
    write_package(module, folder)
    inputs = dict(zip(names, arrays, strict=True))
    return run_package(folder, inputs=inputs, timeout_s=60, spawner=spawner)


@pytest.mark.parametrize(
    ("devices", "element"),
    chosen(
        product(MESHES, ("f32", "i64", "f16", "bf16")),
        # f16 is carried as bf16 is.
        [("shuffled", "f32"), ("ascending", "i64"), ("shuffled", "bf16")],
    ),
)
def test_values_survive(
    devices: str, element: str, tmp_path: Path, spawner: Spawner
) -> None:
    random = np.random.default_rng(0)
    dtype = {"f32": np.float32, "i64": np.int64, "f16": np.float16, "bf16": bfloat16}[
        element
    ]
    arrays = [
        random.integers(-50, 50, shape_of(shape)).astype(dtype)
        for _, _, shape, _, _ in CASES.values()
    ]
    module = one_op_each(MESHES[devices], element)
    results = run_ranks(module, arrays, tmp_path, spawner)
    reference = run_program(module, arrays)
    for name, array, expected in zip(CASES, arrays, reference, strict=True):
        np.testing.assert_array_equal(results[name], array, err_msg=name)
        np.testing.assert_array_equal(expected, array, err_msg=name)


PARTIAL = """
device.mesh @mesh on @box <a = 2, b = 2> DEVICES
func.func @main(%x: tensor<4x8xf32, #dist.layout<@mesh, [{a}, {b}]>>, %w: tensor<8x6xf32, #dist.layout<@mesh, [{b}, {}]>>) -> (tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}]>>, tensor<4x6xf32, #dist.layout<@mesh, [{a}, {b}]>>, tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}], partial sum {b}>>) {
  %p = onnx.MatMul(%x, %w) : (tensor<4x8xf32, #dist.layout<@mesh, [{a}, {b}]>>, tensor<8x6xf32, #dist.layout<@mesh, [{b}, {}]>>) -> tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}], partial sum {b}>>
  %y = collective.all_reduce %p over [b] : tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}], partial sum {b}>> -> tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}]>>
  %z = collective.reduce_scatter %p over [b] : tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}], partial sum {b}>> -> tensor<4x6xf32, #dist.layout<@mesh, [{a}, {b}]>>
  func.return %y, %z, %p : tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}]>>, tensor<4x6xf32, #dist.layout<@mesh, [{a}, {b}]>>, tensor<4x6xf32, #dist.layout<@mesh, [{a}, {}], partial sum {b}>>
}
"""


@pytest.mark.parametrize("devices", chosen(MESHES, ["shuffled"]))
def test_partial_sums_are_added(devices: str, tmp_path: Path, spawner: Spawner) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((4, 8)).astype(np.float32)
    w = random.standard_normal((8, 6)).astype(np.float32)
    module = parse(CLUSTER + PARTIAL.replace("DEVICES", MESHES[devices]))
    results = run_ranks(module, [x, w], tmp_path, spawner)
    for array in results.values():
        np.testing.assert_allclose(array, x @ w, rtol=1e-5, atol=1e-6)


# A ring shift, and ops with a root that is not the first device of the mesh.
ROOTED = """
device.mesh @mesh on @box <a = 4> [2, 0, 3, 1]
device.mesh @one on @box <> [3]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@one>>, %s: tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>>, %p: tensor<8x4xf32, #dist.layout<@mesh, partial sum {a}>>) -> (tensor<8x4xf32, #dist.layout<@mesh>>, tensor<8x4xf32, #dist.layout<@mesh, [{a:1}, {}]>>, tensor<8x4xf32, #dist.layout<@one>>, tensor<8x4xf32, #dist.layout<@one>>, tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>>) {
  %b = collective.broadcast %x over [a] : tensor<8x4xf32, #dist.layout<@one>> -> tensor<8x4xf32, #dist.layout<@mesh>>
  %c = collective.scatter %x over [a] : tensor<8x4xf32, #dist.layout<@one>> -> tensor<8x4xf32, #dist.layout<@mesh, [{a:1}, {}]>>
  %g = collective.gather %s over [a] : tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>> -> tensor<8x4xf32, #dist.layout<@one>>
  %r = collective.reduce %p over [a] : tensor<8x4xf32, #dist.layout<@mesh, partial sum {a}>> -> tensor<8x4xf32, #dist.layout<@one>>
  %t = collective.permute %s over [a] : tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>> -> tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>>
  func.return %b, %c, %g, %r, %t : tensor<8x4xf32, #dist.layout<@mesh>>, tensor<8x4xf32, #dist.layout<@mesh, [{a:1}, {}]>>, tensor<8x4xf32, #dist.layout<@one>>, tensor<8x4xf32, #dist.layout<@one>>, tensor<8x4xf32, #dist.layout<@mesh, [{a}, {}]>>
}
"""


def test_roots_and_rings(tmp_path: Path, spawner: Spawner) -> None:
    random = np.random.default_rng(2)
    arrays = [random.standard_normal((8, 4)).astype(np.float32) for _ in range(3)]
    x, s, p = arrays
    module = parse(CLUSTER + ROOTED)
    results = list(run_ranks(module, arrays, tmp_path, spawner).values())
    rolled = np.roll(s, 2, axis=0)  # each shard of 2 rows moves on by one position
    for array, expected in zip(results, [x, x, s, p, rolled], strict=True):
        np.testing.assert_array_equal(array, expected)


# Two pipeline stages on meshes of two; a function that uses both; a mesh that sends to
# itself in another order, so that its devices face each other.
STAGES = """
device.mesh @first on @box <t = 2> [0 to 2]
device.mesh @second on @box <t = 2> [2 to 4]
device.mesh @turned on @box <t = 2> [3, 2]
func.func @both(%x: tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, %y: tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) -> (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) {
  %a = onnx.Relu(%x) : (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>) -> tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>
  %s = dist.send %a : tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>> -> tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>
  %b = onnx.Add(%s, %y) : (tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) -> tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>
  func.return %a, %b : tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>
}
func.func @main(%x: tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, %y: tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) -> (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@turned, [{t}, {}]>>) {
  %a, %b = func.call @both(%x, %y) : (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) -> (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>)
  %c, %d = func.call @both(%a, %b) : (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>) -> (tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>>)
  %e = dist.send %d : tensor<4x4xf32, #dist.layout<@second, [{t}, {}]>> -> tensor<4x4xf32, #dist.layout<@turned, [{t}, {}]>>
  func.return %c, %e : tensor<4x4xf32, #dist.layout<@first, [{t}, {}]>>, tensor<4x4xf32, #dist.layout<@turned, [{t}, {}]>>
}
"""


def test_sends_between_meshes(tmp_path: Path, spawner: Spawner) -> None:
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    module = parse(CLUSTER + STAGES)
    results = list(run_ranks(module, [x, y], tmp_path, spawner).values())
    positive = np.maximum(x, 0)
    for array, expected in zip(results, [positive, positive * 2 + y], strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    for array, expected in zip(results, run_program(module, [x, y]), strict=True):
        np.testing.assert_array_equal(array, expected)
