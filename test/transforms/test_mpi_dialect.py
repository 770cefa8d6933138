"""Programs with the ops of `mpi`: one thread for each rank computes what was asked for."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from queue import Queue
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, bufferization, memref, mpi, tensor
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
)
from xdsl.dialects.func import ReturnOp
from xdsl.passes import PassPipeline

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import LAYOUT, LayoutAttr
from distir.interpreters.reference import ReferenceInterpreter, run_program
from distir.passes import get_all_passes
from distir.program import argument_attributes, entry_function
from distir.sharding.layout import assemble, take_shard
from distir.sharding.mesh import meshes
from distir.text import new_context
from distir.text.parser import ProgramParser

WAIT_S = 30
REDUCE = {"MPI_SUM": np.add, "MPI_MAX": np.maximum, "MPI_MIN": np.minimum}


@dataclass
class World:
    """What the threads of all ranks share: MPI's communicator of all processes."""

    ranks: int
    sent: dict[Any, Queue[Any]] = field(default_factory=lambda: defaultdict(Queue))
    given: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.ranks, timeout=WAIT_S)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank."""
        self.given[rank] = np.copy(value)
        self.barrier.wait()
        found = [self.given[r] for r in range(self.ranks)]
        self.barrier.wait()
        return found


class Rank:
    """Runs a program of local tensors and `mpi` on one rank."""

    def __init__(self, world: World, rank: int, module: ModuleOp):
        self.world, self.rank, self.module = world, rank, module
        self.run_op = ReferenceInterpreter(module).run_op

    def run(self, arguments: list[Any]) -> list[Any]:
        function = entry_function(self.module)
        env: dict[Any, Any] = dict(zip(function.args, arguments, strict=True))
        for op in function.body.block.ops:
            operands = [env[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                return operands
            env.update(zip(op.results, self._results(op, operands), strict=True))
        raise AssertionError("no func.return")

    def _results(self, op: Any, args: list[Any]) -> tuple[Any, ...]:
        world = self.world
        match op:
            case bufferization.ToBufferOp() | bufferization.ToTensorOp():
                return (args[0],)
            case memref.AllocOp():
                # A buffer that nobody has written has numbers that a test would see.
                return (np.full(op.memref.type.get_shape(), 1e9, np.float32),)
            case memref.CopyOp():
                args[1][...] = args[0]
                return ()
            case mpi.UnwrapMemRefOp():
                return args[0], args[0].size, args[0].dtype
            case mpi.CommRankOp():
                return (self.rank,)
            case mpi.CommSizeOp():
                return (world.ranks,)
            case mpi.AllreduceOp() | mpi.ReduceOp():
                combine = REDUCE[op.operationtype.op_str.data]
                found = reduce(combine, world.exchange(self.rank, args[0]))
                if isinstance(op, mpi.AllreduceOp) or self.rank == args[-1]:
                    args[1][...] = found
                return ()
            case mpi.BcastOp():
                args[0][...] = world.exchange(self.rank, args[0])[args[-1]]
                return ()
            case mpi.GatherOp():
                parts = world.exchange(self.rank, args[0])
                assert args[1] == args[4] == args[0].size
                if self.rank == args[-1]:
                    args[3][...] = np.stack(parts).reshape(args[3].shape)
                return ()
            case mpi.SendOp() | mpi.IsendOp():
                assert args[1] == args[0].size
                world.sent[self.rank, args[3]].put(np.copy(args[0]))
                return ()
            case mpi.RecvOp() | mpi.IrecvOp():
                # The message is sent at once, so that it can be waited for here.
                args[0][...] = world.sent[args[3], self.rank].get(timeout=WAIT_S)
                return ()
            case mpi.AllocateTypeOp() | mpi.VectorGetOp():
                return (None,)
            case mpi.WaitOp():
                return ()
            case arith.IndexCastOp() | arith.ExtSIOp():
                return (args[0],)
            case tensor.FromElementsOp():
                return (np.array(args[0], np.int64),)
            case tensor.ExtractSliceOp():
                dynamic = iter(args[1:])
                starts = [
                    next(dynamic) if start < 0 else start
                    for start in op.static_offsets.get_values()
                ]
                sizes = op.static_sizes.get_values()
                cut = [slice(a, a + n) for a, n in zip(starts, sizes, strict=True)]
                return (args[0][tuple(cut)],)
            case tensor.CollapseShapeOp():
                return (args[0].reshape(op.result.type.get_shape()),)
            case arith.ConstantOp() | arith.AddiOp() | arith.SubiOp() | arith.MuliOp():
                return (_integer(op, args),)
            case arith.DivSIOp() | arith.RemSIOp():
                return (_integer(op, args),)
            case _:
                return self.run_op(op, tuple(args))


_INTEGERS: dict[type[Any], Callable[[int, int], int]] = {
    arith.AddiOp: lambda a, b: a + b,
    arith.SubiOp: lambda a, b: a - b,
    arith.MuliOp: lambda a, b: a * b,
    arith.DivSIOp: lambda a, b: int(a / b),
    arith.RemSIOp: lambda a, b: a - b * int(a / b),
}


def _integer(op: Any, args: list[Any]) -> Any:
    if not isinstance(op, arith.ConstantOp):
        return _INTEGERS[type(op)](*args)
    value = op.value
    if isinstance(value, IntegerAttr | FloatAttr):
        return value.value.data
    assert isinstance(value, DenseIntOrFPElementsAttr)
    type_: Any = value.get_type()
    return np.full(type_.get_shape(), value.get_values()[0])


def parse(text: str) -> ModuleOp:
    return ProgramParser(new_context(), text).parse_module()


def lowered(text: str, passes: str) -> ModuleOp:
    module = parse(text)
    PassPipeline.parse_spec(get_all_passes(), passes).apply(new_context(), module)
    module.verify()
    assert not any(isinstance(op, CollectiveOp) for op in module.walk())
    return module


def by_thread(programs: list[ModuleOp], arguments: list[list[Any]]) -> list[Any]:
    """Runs a program for each rank, and returns their results."""
    world = World(len(programs))
    results: list[Any] = [None] * len(programs)

    def run(rank: int) -> None:
        results[rank] = Rank(world, rank, programs[rank]).run(arguments[rank])

    threads = [threading.Thread(target=run, args=(r,)) for r in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    assert None not in results
    return results


def whole_results(module: ModuleOp, arguments: list[Any]) -> list[Any]:
    """Results of one program for all ranks, of whole arguments, by their layouts."""
    function = entry_function(module)
    (mesh,) = meshes(module).values()
    layouts: list[Any] = [a[LAYOUT] for a in argument_attributes(function)]
    given = [
        [
            take_shard(x, layout.data, mesh, c)
            for x, layout in zip(arguments, layouts, strict=True)
        ]
        for c in mesh.coordinates
    ]
    found = by_thread([module] * len(given), given)
    wanted: list[Any] = [] if function.res_attrs is None else list(function.res_attrs)
    whole: list[Any] = []
    for index, attributes in enumerate(wanted):
        layout = attributes.data[LAYOUT]
        assert isinstance(layout, LayoutAttr)
        shards = [results[index] for results in found]
        shape = [
            n * int(np.prod([mesh.size(s.axis) for s in layout.data.dim(i)]))
            for i, n in enumerate(shards[0].shape)
        ]
        whole.append(assemble(shards, tuple(shape), layout.data, mesh))
    return whole


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def collective(op: str, before: str, after: str, axes: str = "t = 4") -> str:
    """A program of one collective on an 8x12 tensor."""
    types = [f"tensor<8x12xf32, #dist.layout<@mesh{own}>>" for own in (before, after)]
    count = np.prod([int(a.split("=")[1]) for a in axes.split(",")])
    return f"""
    device.mesh @mesh on @box <{axes}> [0 to {count}]
    func.func @main(%x: {types[0]}) -> {types[1]} {{
      %y = collective.{op} : {types[0]} -> {types[1]}
      func.return %y : {types[1]}
    }}
    """


OPS = {
    "a sum": collective("all_reduce %x over [t]", ", partial sum {t}", ""),
    "a maximum": collective("all_reduce %x over [t]", ", partial max {t}", ""),
    "rows gathered": collective("all_gather %x over [t]", ", [{t}, {}]", ""),
    "columns gathered": collective("all_gather %x over [t]", ", [{}, {t}]", ""),
    "a slice": collective("slice %x over [t]", "", ", [{}, {t}]"),
    "a slice in groups": collective("slice %x over [t]", "", ", [{}, {t}]", "d = 2, t = 2"),
    "a ring": collective("permute %x over [t]", ", [{t}, {}]", ", [{t}, {}]"),
    "rings, back": collective(
        "permute %x over [t] {shift = -1 : i64}", ", [{t}, {}]", ", [{t}, {}]", "d = 2, t = 2"
    ),
    "rings of the outermost axis": collective(
        "permute %x over [d]", ", [{d}, {}]", ", [{d}, {}]", "d = 4, t = 2"
    ),
    "scattered sums": collective(
        "reduce_scatter %x over [t]", ", partial sum {t}", ", [{}, {t}]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", OPS.values(), ids=OPS)
def test_collectives(text: str) -> None:
    """Of partial values the parts are those that `run_program` chooses, too."""
    x = numbers(0, 8, 12)
    module = lowered(text, "decompose-collectives,project{spmd},collective-to-mpi")
    wanted = run_program(parse(text), [x])
    found = whole_results(module, [x])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)


MLP = """
func.func @main(
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}
) -> tensor<8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %a = tensor.empty() : tensor<8x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%a : tensor<8x32xf32>) -> tensor<8x32xf32>
  %h = linalg.matmul ins(%x, %w : tensor<8x16xf32>, tensor<16x32xf32>)
    outs(%z : tensor<8x32xf32>) -> tensor<8x32xf32>
  %r = arith.maximumf %h, %z : tensor<8x32xf32>
  %b = tensor.empty() : tensor<8x16xf32>
  %c = linalg.fill ins(%zero : f32) outs(%b : tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = linalg.matmul ins(%r, %v : tensor<8x32xf32>, tensor<32x16xf32>)
    outs(%c : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""


def test_a_linalg_mlp() -> None:
    given = [numbers(1, 8, 16), numbers(2, 16, 32), numbers(3, 32, 16)]
    passes = "distribute{t=4 cluster=cpu},project{spmd},collective-to-mpi"
    module = lowered(MLP, passes)
    assert [op.name for op in module.walk()].count("mpi.allreduce") == 1
    x, w, v = given
    wanted = np.maximum(x @ w, 0) @ v
    (found,) = whole_results(module, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


PIPELINE = """
func.func @main(
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}
) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) {scope = "a"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%h, %v) {scope = "b"} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_pipeline(micro_batches: int) -> None:
    """The first stage sends to the second, which waits."""
    x, w, v = given = [numbers(1, 8, 16), numbers(2, 16, 32), numbers(3, 32, 16)]
    options = f"p=2 k={micro_batches} cluster=cpu"
    passes = (
        f"distribute{{{options}}},inline-calls,project{{rank={{}}}},collective-to-mpi"
    )
    programs = [lowered(PIPELINE, passes.replace("{}", str(r))) for r in range(2)]
    names = [{op.name for op in program.walk()} for program in programs]
    assert "mpi.isend" in names[0] and "mpi.irecv" in names[1]
    _, (found,) = by_thread(programs, [given[:2], given[2:]])
    np.testing.assert_allclose(found, x @ w @ v, rtol=1e-5)


RANK = """
device.mesh @mesh on @box <t = 3> [0 to 3]
func.func @main(%x: tensor<2x4xf32>) -> {} {{
  %y = collective.rank.{} : tensor<2x4xf32> -> {}
  func.return %y : {}
}}
"""


@pytest.mark.parametrize(
    "op, rows",
    [
        ('reduce %x over [t] {GROUP, reduction = "sum", root = 1 : i64}', 2),
        ("broadcast %x over [t] {GROUP, root = 1 : i64}", 2),
        ("gather %x over [t] {GROUP, dim = 0 : i64, root = 1 : i64}", 6),
        ('all_reduce %x over [t] {GROUP, reduction = "min"}', 2),
    ],
    ids=["reduce", "broadcast", "gather", "all-reduce"],
)
def test_collectives_of_one_rank(op: str, rows: int) -> None:
    given = [numbers(r, 2, 4) for r in range(3)]
    op = op.replace("GROUP", "group = array<i64: 0, 1, 2>")
    type_ = f"tensor<{rows}x4xf32>"
    module = lowered(RANK.format(type_, op, type_, type_), "collective-to-mpi")
    found = by_thread([module] * 3, [[x] for x in given])
    wanted = {
        "reduce": sum(given),
        "broadcast": given[1],
        "gather": np.concatenate(given),
        "all_reduce": np.minimum.reduce(given),
    }[op.split()[0]]
    np.testing.assert_allclose(found[1][0], wanted, rtol=1e-6)
    if op.startswith(("broadcast", "all_reduce")):
        np.testing.assert_allclose(found[2][0], wanted, rtol=1e-6)
