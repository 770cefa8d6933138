"""
Pipelines on real processes equal PyTorch in one process: trainings under every kind of
schedule, whatever sends do, and inference.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import imported, model
from support.thoroughness import sampled
from support.torch_training import Arrays, assert_equals_pytorch, batch, training_step
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.distribute import DistributePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program.weights import save_weights

STEPS = 3

STRATEGIES: dict[str, dict[str, Any]] = {
    "k4": {"k": 4},
    "p2": {"p": 2, "k": 4},
    "p4": {"p": 4, "k": 8},
    "p4-k2": {"p": 4, "k": 2},
    "p2-d2": {"p": 2, "k": 4, "d": 2},
    "p2-t2": {"p": 2, "k": 4, "t": 2},
    "p2-t2-d2": {"p": 2, "k": 4, "t": 2, "d": 2},
    "p2-zero1": {"p": 2, "k": 2, "d": 2, "zero": 1},
    "p2-zero2": {"p": 2, "k": 2, "d": 2, "zero": 2},
    "p2-zero3-full": {"p": 2, "k": 2, "d": 2, "zero": 3, "checkpoint": "full"},
    "p2-sp": {"p": 2, "k": 2, "t": 2, "sequence_parallel": True},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "interleaved": {"schedule": "interleaved-1f1b", "chunks": 2},
    "gpipe": {"schedule": "gpipe"},
    "zb-h1": {"schedule": "zb-h1"},
    "interleaved-zb": {"schedule": "interleaved-zero-bubble", "chunks": 2},
    "zbv": {"schedule": "zbv"},
    "dualpipev": {"schedule": "dualpipev"},
}
OTHER_SCHEDULES = list(SCHEDULES)[2:]

# A send that returns when the receiver has said that it has the tensor, and a receive that
# returns with the tensor, in place of the package's own.
RENDEZVOUS = """

def send(x, peer):
    dist.send(_packed(x), peer)
    dist.recv(torch.empty(1), peer, tag=1)


_recv = recv


def recv(shape, dtype, peer):
    x = _recv(shape, dtype, peer)
    dist.send(torch.zeros(1), peer, tag=1)
    return x


start_send, start_recv = send, recv


def wait(arrived):
    return arrived
"""
SENDS = ("asynchronous", "blocking", "rendezvous")
"""
Programs with asynchronous sends and with sends that block, and programs with asynchronous
sends that block all the same. The last two run with `RENDEZVOUS`.
"""

Case = tuple[str, str, str, str]


def cases() -> list[Case]:
    """Model, strategy, schedule, sends."""
    found: list[Case] = []
    for name in ("mlp_deep", "gpt2_deep"):
        for strategy in ("p2", "p4", "p2-d2", "p2-t2-d2"):
            for schedule in ("1f1b", "interleaved"):
                found += [(name, strategy, schedule, sends) for sends in SENDS[:2]]
        for schedule in OTHER_SCHEDULES:
            found.append((name, "p4", schedule, "asynchronous"))
    for schedule in OTHER_SCHEDULES:
        found.append(("mlp_deep", "p2-d2", schedule, "blocking"))
        found.append(("gpt2_deep", "p2-t2", schedule, "asynchronous"))
    for schedule in SCHEDULES:
        found.append(("mlp_deep", "p4", schedule, "rendezvous"))
    for strategy in ("k4", "p4-k2", "p2-zero1", "p2-zero2", "p2-zero3-full", "p2-sp"):
        found.append(("gpt2_deep", strategy, "1f1b", "asynchronous"))
    for strategy in ("p2-d2", "p2-t2"):
        found.append(("gpt2_causal_deep", strategy, "zb-h1", "asynchronous"))
    for name in ("unet_deep", "encoder_decoder_deep"):
        found.append((name, "p4", "1f1b", "asynchronous"))
        found.append((name, "p4", "zb-h1", "blocking"))
        found.append((name, "p2-d2", "interleaved", "asynchronous"))
        found.append((name, "p2-d2", "zbv", "rendezvous"))
    return found


SAMPLE: set[Case] = {
    ("mlp_deep", "p4", "zbv", "rendezvous"),
    ("mlp_deep", "p2-d2", "zb-h1", "blocking"),
    ("gpt2_causal_deep", "p2-t2", "zb-h1", "asynchronous"),
}


def trainings() -> list[Any]:
    """All cases; those outside the sample only in `make test-all`."""
    everything = cases()
    assert set(everything) >= SAMPLE
    return [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in everything
    ]


@functools.cache
def distributed(name: str, strategy: str, schedule: str, blocking: bool) -> ModuleOp:
    module = training_step(name).module.clone()
    options = STRATEGIES[strategy] | SCHEDULES[schedule]
    DistributePass(blocking_sends=blocking, **options).apply(Context(), module)
    module.verify()
    return module


@pytest.mark.parametrize(("name", "strategy", "schedule", "sends"), trainings())
def test_training(
    name: str,
    strategy: str,
    schedule: str,
    sends: str,
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    weights = tmp_path / "model.safetensors"
    save_weights(weights, training_step(name).weights)
    module = distributed(name, strategy, schedule, sends == "blocking")
    package = write_package(module, tmp_path / "package", weights)
    starts = (package / "program.py").read_text().count("collectives.start_send(")
    assert (starts == 0) == (sends == "blocking" or strategy == "k4")
    if sends != "asynchronous":
        with (package / "collectives.py").open("a") as file:
            file.write(RENDEZVOUS)
    results = run_package(
        package,
        inputs=batch(name),
        weights=weights,
        timeout_s=120,
        spawner=spawner,
        training=Training(STEPS),
    )
    assert_equals_pytorch(name, results)


@pytest.mark.parametrize(
    ("name", "options"),
    sampled(
        [
            ("gpt2_causal_deep", {"p": 2, "k": 2, "d": 2}),
            ("mlp_deep", {"p": 4, "k": 4}),
            ("gpt2_deep", {"p": 2, "k": 8}),
            ("encoder_decoder_deep", {"p": 4, "k": 4}),
            ("gpt2_deep", {"p": 4, "k": 4}),
            ("unet_deep", {"p": 4, "k": 4}),
            ("mlp_deep", {"p": 2, "k": 4, "t": 2, "blocking_sends": True}),
            ("gpt2_deep", {"p": 2, "k": 4, "t": 2, "blocking_sends": True}),
        ],
        8,
    ),
)
def test_inference(
    name: str, options: dict[str, Any], tmp_path: Path, spawner: Spawner
) -> None:
    module = imported(name).module.clone()
    OutlineRepeatsPass().apply(Context(), module)
    DistributePass(**options).apply(Context(), module)
    weights = tmp_path / "model.safetensors"
    save_weights(weights, imported(name).weights)
    results: Arrays = run_package(
        write_package(module, tmp_path / "package", weights),
        inputs=model(name).numpy_inputs,
        weights=weights,
        timeout_s=120,
        spawner=spawner,
    )
    expected = model(name).numpy_outputs.values()
    for found, wanted in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
