"""Packages under torchrun: several agents, and ranks that die and are started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.training_programs import package, training_mlp

from distir.launch.packages import Spawner, Training, run_package

DATA = """
import os
import signal
import torch


def make(part, parts):
    generator = torch.Generator().manual_seed(part)
    for step in range(1, 100):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if step == 4 and first and os.environ["RANK"] == "3":
            os.kill(os.getpid(), signal.SIGKILL)
        draw = torch.randn(2, 8 // parts, 8, generator=generator)
        yield draw[0], draw[1]
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_a_rank_that_dies_on_one_of_two_nodes_goes_on_from_the_last_checkpoint(
    tmp_path: Path, spawner: Spawner
):
    folder = package(training_mlp(), tmp_path / "package", d=2, t=2, zero=1)
    data, log = tmp_path / "data.py", tmp_path / "log.jsonl"
    data.write_text(DATA)
    source = f"{data}:make"
    expected = run_package(folder, spawner=spawner, training=Training(5, data=[source]))
    meeting = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3")
    meeting += ("--rdzv-backend", "c10d", "--rdzv-id", "test")
    meeting += ("--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    what = ("--steps", "5", "--data", source, "--log-file", log, "--resume", "if-any")
    saved = ("--checkpoint-dir", tmp_path / "checkpoints", "--save-every", "1")
    command = (sys.executable, "-m", "torch.distributed.run", *meeting)
    command += (folder / "main.py", *what, *saved, "--timeout", "60")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    agents = [
        subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        told = [agent.communicate(timeout=300)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(told)
    # The agent of the rank that died says so, and the others say what became of them.
    assert any("failed (exitcode: -9) local_rank: 1" in text for text in told)
    assert any("error: the connection to another process is lost" in t for t in told)
    assert "Traceback" not in "".join(told)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    done = [entry["step"] for entry in entries]
    # The steps of the second start follow the last complete checkpoint, not the first step.
    assert done[:3] == [1, 2, 3] and done[3] in (3, 4) and done[-2:] == [4, 5]
    found = {entry["step"]: entry["loss"] for entry in entries}
    np.testing.assert_allclose(
        [found[step] for step in range(1, 6)], expected["loss"], rtol=1e-5
    )


SCRIPT = """
import os
import signal
import sys

import torch
import torch.distributed as dist

import distir

torch.manual_seed(0)
module = torch.nn.Linear(4, 4)
parallel = distir.parallelize(module, (torch.randn(4, 4),), loss="mse", d=2, check="off")
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(3):
    if first and step == 1 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = parallel(torch.ones(2, 4), torch.zeros(2, 4))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}", flush=True)
"""


@pytest.mark.slow
def test_one_restart_is_enough_for_a_script(tmp_path: Path):
    """Ranks of the second start do not look for those of the first (`runtime/communication/meeting`)."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["DISTIR_CACHE"] = str(tmp_path / "cache")
    for _ in range(3):
        done = subprocess.run(
            (*command, "--max-restarts", "1", script),
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("loss ") == 2
