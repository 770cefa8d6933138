"""
Verifies the kernels of a program. Each kernel is compared with its reference (the ops
that it replaces), in a process of its own and within a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.kernel import KernelDefOp, kernels
from distir.errors import DistIRError
from distir.lowering.kernel_files import KernelFile, kernel_files
from distir.sharding.kernel_parts import check_rule
from distir.system.output_files import write_text

SECONDS = 60.0
"""The default time limit for the checks of one kernel, in seconds."""


@dataclass(frozen=True)
class VerifiedKernel:
    """
    A kernel that agrees with its reference.

    - `kernel`: the kernel;
    - `difference`: the largest difference of its results from the reference, relative
      to the largest element;
    - `gradient_difference`: the largest relative difference of its gradients; None if
      the kernel has no gradient of its own.
    """

    kernel: KernelDefOp
    difference: float
    gradient_difference: float | None


def verify_kernels(
    module: ModuleOp, files: list[Path], seconds: float = SECONDS
) -> list[VerifiedKernel]:
    """
    Compares every kernel of a sequential program with its reference. `files` are the
    user's files with the kernels.

    Three results are compared: the kernel's result, its gradients for random gradients
    of the result, and its result on parts, for every factor that the rule allows to
    split. The kernel must not change its arguments, and two runs must give equal
    results.

    Raises DistIRError, with the reason, for the first kernel that is wrong or that
    takes longer than `seconds` to check.
    """
    sources = kernel_files(module, files)
    found: list[VerifiedKernel] = []
    with TemporaryDirectory(prefix="distir-kernels-") as folder:
        program = Path(folder) / "program.mlir"
        write_text(program, _kernels_alone(module))
        for kernel in kernels(module).values():
            check_rule(kernel)
            if kernel.wrt is None:
                answer = _checked(kernel, program, sources, seconds)
                first, *others = answer
                found.append(VerifiedKernel(kernel, first, *(others or [None])))
    return found


def _kernels_alone(module: ModuleOp) -> str:
    """Returns the kernels of a program, without its other parts, as text."""
    return str(ModuleOp([kernel.clone() for kernel in kernels(module).values()]))


def _checked(
    kernel: KernelDefOp,
    program: Path,
    sources: Mapping[str, KernelFile],
    seconds: float,
) -> list[float]:
    """
    Checks a kernel in a new process. Returns the largest difference of its results and,
    if the kernel has its own gradient, of its gradients. Raises DistIRError if the
    kernel is wrong or the time is over.
    """
    job, answer = (program.with_name(n) for n in ("job.json", "answer.json"))
    answer.unlink(missing_ok=True)
    asked = {
        "program": str(program),
        "kernel": kernel.symbol,
        "files": {name: str(file.path.resolve()) for name, file in sources.items()},
        "answer": str(answer),
    }
    write_text(job, json.dumps(asked))
    what = f"kernel @{kernel.symbol} ({kernel.implementation.data})"
    process = subprocess.Popen(
        # -P: the current folder must not shadow modules.
        [sys.executable, "-P", "-m", "distir.scheduling.kernel_check", str(job)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise DistIRError(
            f"{what} is refused: its checks were not done after {seconds:g} s; it hangs, or "
            f"needs a larger --timeout"
        ) from error
    finally:
        _end(process)
    if not answer.exists():
        last = errors.strip().splitlines()[-1:] or ["without a message"]
        raise DistIRError(
            f"{what} is refused: the process that checked it ended with code "
            f"{process.returncode}: {last[0]}"
        )
    found = json.loads(answer.read_text(encoding="utf-8"))
    if "problem" in found:
        implementation, problem = found["problem"]
        who = "" if implementation == kernel.implementation.data else implementation
        raise DistIRError(f"{what} is refused: {who}{': ' if who else ''}{problem}")
    return found["differences"]


def _end(process: subprocess.Popen[str]) -> None:
    """Kills a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
