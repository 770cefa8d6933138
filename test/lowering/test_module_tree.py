"""Generated programs are modules that mirror the source, written once for what repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import succeed
from support.lowering_cases import run_here
from support.programs import parse
from support.random_programs import arguments_of
from torch import nn

from distir.interpreters.reference import run_program
from distir.launch.timing_rank import load_package
from distir.lowering.program_source import program_source
from distir.lowering.source.paths import MODULE_ATTRIBUTES, PathTree

GPT = ("--d-model", "768", "--heads", "12", "--vocab", "50304", "--batch", "4")


def lowered(folder: Path, built: tuple[str, ...], *options: str) -> Path:
    """The package of a built model, distributed if there are options."""
    program = folder / "program.mlir"
    succeed("build", *built, "-o", program)
    if options:
        succeed("distribute", program, "--cluster", "dgx2", *options, "-o", program)
    succeed("lower", program, "-o", folder / "package")
    return folder / "package"


def bodies(package: Path) -> list[Any]:
    """The modules of all ranks of a package, without process groups."""
    program, _, _ = load_package(str(package), f"tree_{package.parent.name}")
    meshes = dict.fromkeys(program.MESHES)
    return [rank.program(meshes, rank.numbers) for rank in program.RANKS]


def paths(body: nn.Module) -> set[str]:
    return {name for name, _ in body.named_modules()}


def declared(body: nn.Module) -> set[str]:
    """The paths of all parameters, which have no tensors yet."""
    return {
        f"{name}.{each}".lstrip(".")
        for name, module in body.named_modules()
        for each in module._parameters  # pyright: ignore[reportPrivateUsage]
    }


def test_a_training_step_of_twelve_layers(tmp_path: Path) -> None:
    built = ("gpt", "--layers", "12", *GPT, "--seq", "64", "--training")
    package = lowered(tmp_path, built)
    text = (package / "program.py").read_text()
    assert len(text.splitlines()) < 250
    (body,) = bodies(package)
    assert {"transformer.h.0", "transformer.h.3.attn", "transformer.ln_f"} <= paths(
        body
    )
    assert "transformer.h.11.mlp.c_proj.weight" in declared(body)
    assert len({type(layer) for layer in body.transformer.h}) == 1
    assert len(body.transformer.h) == 12
    # Nothing is told by thousands of numbers.
    assert max(map(len, text.splitlines())) < 150


TINY = (
    "--d-model",
    "32",
    "--heads",
    "4",
    "--vocab",
    "64",
    "--batch",
    "8",
    "--seq",
    "8",
)
SMALL = ("gpt", "--layers", "4", *TINY, "--training")


@pytest.mark.parametrize(
    ("options", "most"),
    [
        # The parts of the others.
        pytest.param((), 250, marks=pytest.mark.slow),
        pytest.param(("-d", "2"), 310, marks=pytest.mark.slow),
        pytest.param(("-t", "2"), 330, marks=pytest.mark.slow),
        pytest.param(("-d", "2", "--buckets"), 310, marks=pytest.mark.slow),
        pytest.param(("-d", "2", "--zero", "3"), 420, marks=pytest.mark.slow),
        (("-d", "2", "--zero", "1", "--overlap"), 640),
        pytest.param(("-t", "2", "--sequence-parallel"), 460, marks=pytest.mark.slow),
        (("-d", "2", "-t", "2", "--checkpoint", "full"), 420),
    ],
    ids=lambda x: "".join(x) if isinstance(x, tuple) else "",
)
def test_distributed(tmp_path: Path, options: tuple[str, ...], most: int) -> None:
    """A program has the same modules however it is distributed, and is not much longer."""
    package = lowered(tmp_path, SMALL, *options)
    assert len((package / "program.py").read_text().splitlines()) < most
    names = {
        f"transformer.h.{i}.{name}"
        for i in range(4)
        for name in ("attn.c_attn.weight", "mlp.c_proj.bias", "ln_1.weight")
    }
    for body in bodies(package):
        assert {"transformer.wte.weight", *names} <= declared(body)


def test_stages(tmp_path: Path) -> None:
    """A rank has the layers of its stage, under their numbers in the source."""
    package = lowered(tmp_path, SMALL, "-p", "2", "-k", "2")
    first, last = bodies(package)
    own = [
        {p for p in paths(b) if p.startswith("transformer.h.") and p.count(".") == 2}
        for b in (first, last)
    ]
    assert own[0] and own[1] and not own[0] & own[1]
    assert own[0] | own[1] == {f"transformer.h.{i}" for i in range(4)}


def test_members_are_the_tensors_that_are_given(tmp_path: Path) -> None:
    """In the second call with the same tensors nothing is replaced, and updates are seen."""
    built = ("mlp", "--layers", "2", "--d-model", "8", "--batch", "4", "--training")
    package = lowered(tmp_path, built)
    program, _, _ = load_package(str(package), "tree_members")
    (rank,) = program.RANKS
    body = rank.program({}, rank.numbers)
    given = [
        torch.zeros(s.shape, dtype=s.dtype)
        if s.role in ("state", "label")
        else torch.randn(s.shape, dtype=torch.float64).to(s.dtype)
        for s in program.ARGUMENTS
    ]
    before = [x.clone() for x in given]
    with torch.no_grad():
        body.main(*given)
    first = dict(body.named_parameters())
    updated = {r.updates: i for i, r in enumerate(program.RESULTS) if r.updates}
    with torch.no_grad():
        results = body.main(*given)
    for i, spec in enumerate(program.ARGUMENTS):
        if spec.role == "parameter":
            assert results[updated[spec.name]] is given[i]
            assert first[spec.name].data_ptr() == given[i].data_ptr()
            assert not torch.equal(given[i], before[i])
    for name, parameter in body.named_parameters():
        assert parameter is first[name]


def test_members_hide_nothing_of_modules() -> None:
    # Other libraries may have put methods of their own into PyTorch's class.
    public = {
        name
        for name, value in vars(nn.Module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "torch").startswith("torch")
    }
    assert public <= MODULE_ATTRIBUTES


def test_elements_are_in_one_scope_of_their_own() -> None:
    """Whatever it is called: `self` becomes another name, and `main` is taken."""
    tree = PathTree()
    tree.add(("main",))
    taken: set[str] = set()
    for word in ("self", "main", "layer", "layer"):
        scope = tree.unused(word)
        made = [tree.add((scope, str(i))) for i in range(3)]
        assert [path[1:] for path in made] == [("0",), ("1",), ("2",)]
        (name,) = {path[0] for path in made}
        assert name != "self" and name not in taken
        taken.add(name)


def test_repeats_that_are_given_tensors() -> None:
    """
    What a method is the last to need is given to it in a list, in the order of its
    arguments: `a - b` is not `b - a`.
    """
    module = parse("""
        func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
          %p = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
          %q = onnx.Exp(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %a0 = onnx.Sin(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %b0 = onnx.Sub(%a0, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
          %c0 = onnx.Tanh(%b0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %d0 = onnx.Sub(%c0, %a0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
          %a1 = onnx.Sin(%d0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %b1 = onnx.Sub(%a1, %q) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
          %c1 = onnx.Tanh(%b1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %d1 = onnx.Sub(%c1, %a1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
          %y = onnx.Add(%d1, %b0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
          func.return %y : tensor<4x8xf32>
        }""")
    arguments = arguments_of(module)
    (expected,) = run_program(module, arguments)
    assert "repeat0(given_2.pop(0), given_2.pop(0))" in program_source(module).text
    (found,) = run_here(module, arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [("878", "900"), ("h.0", "h.1")])
def test_tensors_with_numbers_for_names(names: tuple[str, str]) -> None:
    """As older exporters name weights, and PyTorch the parts of a ParameterList."""
    matrix = "tensor<2x2xf32>"
    module = parse(
        f"""func.func @main(%x: {matrix},
            %v: {matrix} {{dist.role = "parameter", dist.name = "{names[0]}"}},
            %w: {matrix} {{dist.role = "parameter", dist.name = "{names[1]}"}}
        ) -> {matrix} {{
            %y = onnx.MatMul(%x, %v) : ({matrix}, {matrix}) -> {matrix}
            %z = onnx.Sub(%y, %w) : ({matrix}, {matrix}) -> {matrix}
            func.return %z : {matrix}
        }}"""
    )
    x, v, w = np.random.default_rng(0).standard_normal((3, 2, 2), np.float32)
    (found,) = run_here(module, [x, v, w])
    np.testing.assert_allclose(found, x @ v - w, rtol=1e-5)
