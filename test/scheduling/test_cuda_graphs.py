"""Layers that packages capture as CUDA graphs, where there are GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pipelines import arguments_of
from support.schedules import gpt, scheduled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import COMPILED
from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function, functions, result_names
from distir.runtime import graphs
from distir.scheduling import Schedule


def marked(module: ModuleOp) -> list[str]:
    return [n for n, f in functions(module).items() if COMPILED in f.attributes]


def asked(module: ModuleOp, count: int) -> ModuleOp:
    """A training step, the first layers of which are to be graphs."""
    s = Schedule()
    s["transformer.h.*"].first(count).cuda_graph()
    found = scheduled(module, s)
    DifferentiatePass(optimizer="sgd").apply(Context(), found)
    return found


def test_other_layers_have_a_function_of_their_own() -> None:
    found = asked(gpt(layers=3), 2)
    assert sorted(marked(found)) == ["layer_1_backward", "layer_1_forward"]
    assert {"layer_forward", "layer_backward"} <= set(functions(found))


def test_without_a_gpu_the_ops_run_one_by_one(tmp_path: Path, spawner: Spawner) -> None:
    module = asked(gpt(layers=2), 2)
    package = write_package(distributed(module, d=2), tmp_path)
    manifest = json.loads((package / "manifest.json").read_text())
    assert set(manifest["graphs"].values()) == {""}
    text = (package / "program.py").read_text()
    assert text.count("@graphs.captured\n") == len(manifest["graphs"])
    names, arguments = argument_names(entry_function(module)), arguments_of(module)
    results = run_package(
        package, inputs=dict(zip(names, arguments, strict=True)), spawner=spawner
    )
    wanted = run_program(module, arguments)
    for name, value in zip(result_names(entry_function(module)), wanted, strict=True):
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5)


def test_what_waits_for_others_is_not_captured(tmp_path: Path) -> None:
    package = write_package(distributed(asked(gpt(layers=2), 2), t=2), tmp_path)
    found = json.loads((package / "manifest.json").read_text())["graphs"]
    assert found
    assert all("waits for other devices" in reason for reason in found.values())
    assert "graphs" not in (package / "program.py").read_text()


def test_on_a_gpu_the_results_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's capture is called for tensors on GPUs, once for each function."""
    calls: list[str] = []
    memory = torch.zeros(2)

    def compiled(function: object, backend: str, dynamic: bool) -> object:
        calls.append(backend)

        def replay(self: object, *values: torch.Tensor) -> object:
            return memory, [memory], None

        return replay

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    method: Callable[..., Any] = graphs.captured(lambda: None)
    results = [method(None, torch.ones(2)) for _ in range(2)]
    assert calls == ["cudagraphs"]
    memory += 1
    for found, (saved,), x in results:
        assert found.tolist() == saved.tolist() == [0.0, 0.0] and x is None


def test_what_cannot_be_marked_is_refused() -> None:
    s = Schedule()
    s["transformer.ln_f"].cuda_graph()
    with pytest.raises(
        DistIRError, match=r"line \d+: 'transformer.ln_f' is no call of a function"
    ):
        scheduled(gpt(), s)
    s = Schedule()
    layers = s["transformer.h.*"]
    layers.cuda_graph()
    layers.first(1).cuda_graph()
    with pytest.raises(DistIRError, match=r"'transformer\.h\.0' is run as one piece"):
        scheduled(gpt(), s)
