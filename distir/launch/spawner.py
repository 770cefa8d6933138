"""
The process that starts ranks: it imports PyTorch once and forks a process per rank.

The script reads one job per line of its standard input, as JSON: `ranks` (their
number), `script`, `arguments`, `imports` (modules that all ranks use), `environment`
(for all ranks) and `logs` (a folder). For each rank that ends, it writes one line, such
as `{"rank": 1, "code": 0}`; a negative code is a signal. Each rank runs the script as
`__main__`, as torchrun would start it, and writes its output to `logs/<rank>.log`.
After a line `{"cancel": true}`, the process kills the running ranks and writes the same
line. At the end of its input, it kills the running ranks and ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_CANCEL = {"cancel": True}


def _run_rank(job: dict[str, Any], rank: int, parent: int) -> NoReturn:
    """
    Runs a rank in this forked child process, and then ends the process. Never returns.
    """
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        log = os.open(
            Path(job["logs"]) / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        faulthandler.enable()
        ranks = job["ranks"]
        os.environ.update(job["environment"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
        sys.argv = [job["script"], *job["arguments"]]
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _answer(line: object) -> None:
    print(json.dumps(line), flush=True)


def _run_job(job: dict[str, Any], commands: BinaryIO) -> None:
    """
    Forks the ranks of a job and reports the end of each. A line on `commands`, or the
    end of `commands`, kills the ranks that still run.
    """
    for name in job["imports"]:  # once for all ranks, as they take long to load
        import_module(name)
    parent = os.getpid()
    running: dict[int, int] = {}
    for rank in range(job["ranks"]):
        child = os.fork()
        if child == 0:
            _run_rank(job, rank, parent)
        running[child] = rank
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in running:
            code = os.waitstatus_to_exitcode(status)
            _answer({"rank": running.pop(child), "code": code})
        elif select.select([commands], [], [], 0.02)[0]:
            # While a job runs, only its cancellation can be sent.
            line = commands.readline()
            for left in running:
                os.kill(left, signal.SIGKILL)
            for left in running:
                os.waitpid(left, 0)
            if not line:
                sys.exit(1)
            _answer(_CANCEL)
            return


def main() -> None:
    """Serves jobs until the standard input ends."""
    import torch.distributed.device_mesh  # noqa: F401  # pyright: ignore[reportUnusedImport]

    gc.freeze()  # modules stay loaded, so that ranks need not search them for garbage
    # Unbuffered, so that select sees every line that has not been read.
    with open(0, "rb", buffering=0, closefd=False) as commands:
        _answer({"ready": True})
        while line := commands.readline():
            job = json.loads(line)
            if job == _CANCEL:  # all ranks of the job had ended
                _answer(_CANCEL)
            else:
                _run_job(job, commands)


if __name__ == "__main__":
    main()
