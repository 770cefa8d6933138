"""Which results of the simulator are views: those that are views in PyTorch, and no others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from support.cost_programs import cluster, simulate_text
from support.lowering_cases import load_program
from support.programs import parse

from distir.launch.memory_rank import LiveStorages
from distir.lowering.program_source import program_source

SHAPE = (2, 4, 6, 8)


def peak(text: str) -> int:
    (bytes_,) = simulate_text(text, cluster(1)).peak_memory_bytes
    return bytes_


def type_of(shape: Sequence[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def integers(name: str, values: Sequence[int]) -> tuple[str, str]:
    """A line that makes a constant, and its type."""
    type_ = f"tensor<{len(values)}xi64>"
    line = f"{name} = onnx.Constant() {{value = dense<{list(values)}> : {type_}}}"
    return f"{line} : () -> {type_}", type_


def storages_of(text: str, *shapes: Sequence[int]) -> int:
    """The bytes that a program's package holds at most, with its arguments."""
    program = load_program(program_source(parse(text)))
    (rank,) = program.RANKS
    body = rank.program({}, rank.numbers)
    storages, given = LiveStorages(""), [torch.randn(*shape) for shape in shapes]
    storages.note(given)
    with torch.no_grad(), storages:
        body.main(*given)
    return storages.peak


class Chain:
    """A program of ops that each use the result of the one before, and nothing else."""

    def __init__(self, shape: Sequence[int] = SHAPE):
        self.shape, self.lines, self.constants = tuple(shape), list[str](), 0
        self.given = self.shape

    def add(
        self, op: str, shape: Sequence[int], attributes: str = "", *given: Sequence[int]
    ) -> None:
        old, new = self.names()
        operands, types = [old], [type_of(self.shape)]
        for values in given:
            line, type_ = integers(f"%c{len(self.lines)}", values)
            operands.append(f"%c{len(self.lines)}")
            types.append(type_)
            self.lines.append(line)
            self.constants += 8 * len(values)
        self.lines.append(
            f"{new} = onnx.{op}({', '.join(operands)}) {{{attributes}}} : "
            f"({', '.join(types)}) -> {type_of(shape)}"
        )
        self.shape = tuple(shape)

    def names(self) -> tuple[str, str]:
        made = sum("onnx.Constant" not in line for line in self.lines)
        return (f"%v{made}" if made else "%x"), f"%v{made + 1}"

    def text(self) -> str:
        last, _ = self.names()
        body = "\n".join(self.lines)
        return (
            f"func.func @main(%x: {type_of(self.given)}) -> {type_of(self.shape)} {{\n"
            f"{body}\nfunc.return {last} : {type_of(self.shape)}\n}}"
        )


def random_chain(seed: int) -> Chain:
    """Six ops that reorder, cut, repeat, reshape or change elements."""
    draw, chain = random.Random(seed), Chain()
    for _ in range(6):
        shape, rank = chain.shape, len(chain.shape)
        match draw.choice(["Transpose", "Slice", "Expand", "Reshape", "Relu"]):
            case "Transpose":
                order = draw.sample(range(rank), rank)
                perm = ", ".join(f"{i} : i64" for i in order)
                chain.add("Transpose", [shape[i] for i in order], f"perm = [{perm}]")
            case "Slice":
                dim = draw.randrange(rank)
                if shape[dim] % 2 == 0:
                    new = [n // 2 if i == dim else n for i, n in enumerate(shape)]
                    chain.add("Slice", new, "", [0], [new[dim]], [dim])
            case "Expand":
                chain.add("Expand", [2, *shape], "", [2, *shape])
            case "Reshape" if rank > 1:
                at = draw.randrange(rank - 1)
                new = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
                chain.add("Reshape", new, "allowzero = 0 : i64", new)
            case "Reshape":
                pass
            case _:
                chain.add("Relu", shape)
    chain.add("Relu", chain.shape)
    return chain


@pytest.mark.parametrize("seed", range(24))
def test_chains(seed: int) -> None:
    """The peak is that of the storages which PyTorch makes of the same program."""
    chain = random_chain(seed)
    counted = storages_of(chain.text(), SHAPE)
    assert peak(chain.text()) - chain.constants == counted


def test_einsums_copy_nothing_that_lies_in_order() -> None:
    """PyTorch sums over letters in the order of the alphabet; here g lies before c."""
    x, w, y = (2, 4, 6, 8), (2, 4, 6, 3), (2, 3, 8)
    text = f"""
    func.func @main(%x: {type_of(x)}, %w: {type_of(w)}) -> {type_of(y)} {{
      %y = onnx.Einsum(%x, %w) {{equation = "egcm,egch->ehm"}} : ({type_of(x)}, {type_of(w)}) -> {type_of(y)}
      func.return %y : {type_of(y)}
    }}"""
    assert peak(text) == storages_of(text, x, w)


def test_parts_hold_the_whole() -> None:
    """A part of a split keeps all of it in memory."""
    size = 4 * 4 * 8
    chain = """
    func.func @main(%x: tensor<4x8xf32>) -> tensor<2x8xf32> {
      %h = onnx.Relu(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %a, %b = onnx.Split(%h) {axis = 0 : i64, num_outputs = 2 : i64} : (tensor<4x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>)
      %c = onnx.Relu(%b) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      %y = onnx.Relu(%c) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      func.return %y : tensor<2x8xf32>
    }"""
    assert peak(chain) == size + size + size // 2


def test_products_copy_what_is_no_row_of_matrices() -> None:
    """Heads of one token lie side by side: PyTorch's product copies them to heads first."""
    heads = "tensor<2x4x6x8xf32>"
    text = f"""
    func.func @main(%x: tensor<2x6x4x8xf32>, %y: tensor<2x4x8x6xf32>) -> tensor<2x4x6x6xf32> {{
      %h = onnx.Transpose(%x) {{perm = [0 : i64, 2 : i64, 1 : i64, 3 : i64]}} : (tensor<2x6x4x8xf32>) -> {heads}
      %z = onnx.MatMul(%h, %y) : ({heads}, tensor<2x4x8x6xf32>) -> tensor<2x4x6x6xf32>
      func.return %z : tensor<2x4x6x6xf32>
    }}"""
    given, result = 2 * 4 * 6 * 8 * 4, 2 * 4 * 6 * 6 * 4
    assert peak(text) == 2 * given + given + result
