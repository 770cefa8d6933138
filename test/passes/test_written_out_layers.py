"""Layers that are written out, without functions and scopes, are distributed in linear time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.command_line import distir
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import PassPipeline

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist_attributes import SCOPE
from distir.passes import get_all_passes
from distir.text import ProgramParser, new_context

STEP = "inline-calls,differentiate{loss=cross_entropy optimizer=adamw}"


def run(module: ModuleOp, passes: str) -> None:
    PassPipeline.parse_spec(get_all_passes(), passes).apply(new_context(), module)


def written_out(layers: int, folder: Path) -> ModuleOp:
    """A training step of a GPT without scopes, names and calls."""
    file = folder / f"gpt{layers}.mlir"
    sizes = "--d-model 64 --heads 4 --vocab 256 --batch 8 --seq 16"
    done = distir("build", "gpt", "--layers", str(layers), *sizes.split(), "-o", file)
    assert done.code == 0, done.errors
    module = ProgramParser(new_context(), file.read_text()).parse_module()
    run(module, STEP)
    for op in module.walk():
        op.attributes.pop(SCOPE, None)
        for result in op.results:
            result.name_hint = None
    return module


@pytest.mark.slow
def test_time_grows_with_the_number_of_layers(tmp_path: Path) -> None:
    seconds: dict[int, float] = {}
    collectives: dict[int, int] = {}
    for layers in (1, 4, 16):  # the first imports what the others need
        module = written_out(layers, tmp_path)
        begin = time.process_time()
        run(module, "distribute{d=2 t=2 cluster=cpu}")
        seconds[layers] = time.process_time() - begin
        collectives[layers] = sum(isinstance(op, CollectiveOp) for op in module.walk())
    # Four times the layers in about four times the time; in 16 times, if it were squared.
    assert seconds[16] < 8 * seconds[4]
    # Each layer is split as the others are.
    each = (collectives[4] - collectives[1]) / 3
    assert collectives[16] == collectives[1] + 15 * each
