"""
The options of processes that run or measure programs. Several commands share them.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.options import option

BACKENDS = ("gloo", "nccl")
"""The libraries by which processes communicate: gloo on CPUs, nccl on GPUs."""


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The options of processes that run on this machine."""

    backend: str = option(
        "gloo",
        "the backend to measure: gloo, the cores of this machine's CPU (default), or nccl, "
        "its GPUs",
        choices=BACKENDS,
    )
    seed: int = option(0, "of random inputs and new parameters", kind="integer")
    timeout: float = option(
        600.0,
        "stop the ranks after that long, in a training after that long without a "
        "new step (default 600)",
        metavar="SECONDS",
    )
    compile: bool = option(
        False,
        "let PyTorch's compiler (torch.compile) make kernels of the layers, which "
        "takes a while in the first step",
    )
    kernels: tuple[str, ...] = option(
        (),
        "the file of a module of kernels that the program names; may be repeated. "
        "Without it, the functions that a program asks for are not loaded",
        metavar="FILE.py",
        kind="input_file",
    )
