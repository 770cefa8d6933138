"""
The main job, end to end: GPT-2 (124M) from PyTorch to four processes that compute the
same logits. `make demo` runs it; every command that it prints can be typed as it stands.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = Path("build/demo")
BATCH, SEQUENCE = 4, 64
DATA, TENSOR = 2, 2
TOLERANCE = 1e-3
"""Largest difference to PyTorch's logits that the demo accepts, in f32."""

console = Console(highlight=False, soft_wrap=True)


class Logits(torch.nn.Module):
    """GPT-2 without the parts of its output that a comparison does not need."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gpt2 = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(input_ids=input_ids).logits


def step(number: int, title: str) -> None:
    console.print(f"\n[bold]{number}. {title}[/bold]")


def distir(*arguments: str | Path) -> None:
    """Runs a `distir` command of this environment and shows it."""
    words = [str(a) for a in arguments]
    console.print(f"[cyan]$ distir {shlex.join(words)}[/cyan]")
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "distir.tools.cli", *words])
    if done.returncode:
        sys.exit(done.returncode)
    console.print(f"[dim]{time.perf_counter() - start:.1f} s[/dim]")


def export(model: Logits, onnx_file: Path, inputs_file: Path) -> np.ndarray:
    """Writes the model and an input; returns the logits that PyTorch gives."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.gpt2.config.vocab_size
    input_ids = torch.randint(vocabulary, (BATCH, SEQUENCE), generator=generator)
    np.savez(inputs_file, input_ids=input_ids.numpy())
    with torch.no_grad():
        logits = model(input_ids).numpy()
    # Unoptimised, so that parameters keep their names; DistIR folds constants itself.
    torch.onnx.export(
        model,
        (input_ids,),
        onnx_file,
        input_names=["input_ids"],
        output_names=["logits"],
        dynamo=True,
        optimize=False,
        verbose=False,
    )
    return logits


def main() -> None:
    # The exporter's remarks on its own dependencies would hide what the demo shows.
    warnings.filterwarnings("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    onnx_file, inputs = FOLDER / "gpt2.onnx", FOLDER / "inputs.npz"
    model, distributed = FOLDER / "gpt2.mlir", FOLDER / "gpt2.dist.mlir"
    report, outputs = FOLDER / "simulation.json", FOLDER / "outputs.npz"
    trace, package = FOLDER / "trace.json", FOLDER / "gpt2_d2_t2"
    started = time.perf_counter()

    step(1, "GPT-2, 124M parameters, random weights, exported to ONNX by PyTorch")
    with console.status("building and exporting the model"):
        expected = export(Logits().eval(), onnx_file, inputs)
    console.print(f"{onnx_file}: batch {BATCH}, {SEQUENCE} tokens")

    step(
        2, "Import it: shapes folded, the 12 layers as one function, weights beside it"
    )
    distir("import", onnx_file, "-o", model)

    step(3, f"Distribute it: {DATA} x data, {TENSOR} x tensor, on a DGX-2; verified")
    distir(
        *("distribute", model, "--cluster", "dgx2"),
        *("-d", str(DATA), "-t", str(TENSOR), "-o", distributed),
    )

    step(4, "Check that both programs compute the same, in one process")
    distir("check", model, distributed)

    step(5, "Simulate it on the DGX-2")
    distir("simulate", distributed, "--json", report, "--trace", trace)

    step(6, "Lower it to a PyTorch package")
    distir("lower", distributed, "-o", package)

    step(7, f"Run it on {DATA * TENSOR} processes of this machine")
    distir(
        *("run", distributed, "--backend", "gloo"),
        *("--inputs", inputs, "--outputs", outputs),
    )

    step(8, "Compare with PyTorch's own logits")
    with np.load(outputs) as archive:
        actual = archive["logits"]
    difference = float(np.abs(actual - expected).max())
    simulation = json.loads(report.read_text())
    table = Table(show_header=False)
    for row in (
        ("strategy", f"{DATA} x data, {TENSOR} x tensor"),
        ("predicted step time", f"{simulation['step_time_s'] * 1e3:.3f} ms on a DGX-2"),
        (
            "peak memory per device",
            f"{max(simulation['peak_memory_bytes']) / 1e6:.0f} MB",
        ),
        (
            "communication per device",
            f"{max(simulation['communication_bytes']) / 1e6:.1f} MB",
        ),
        ("largest difference to PyTorch", f"{difference:.2g} (at most {TOLERANCE:g})"),
        ("took", f"{time.perf_counter() - started:.0f} s"),
    ):
        table.add_row(*row)
    console.print(table)
    console.print(f"The generated files are in {FOLDER}{os.sep}:")
    for path, what in (
        (model, "the sequential program"),
        (distributed, "the distributed program"),
        (trace, "the timeline, for ui.perfetto.dev"),
        (package, "the PyTorch package, for torchrun"),
    ):
        console.print(f"  {path}: {what}")
    if not difference <= TOLERANCE:
        sys.exit(f"error: the logits differ by {difference:.2g}, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
