"""Runs a written package on this machine: starts its ranks and collects its results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from compileall import compile_dir
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.program.weights import load_weights, save_weights
from distir.system.output_files import write_text

Progress = Callable[[str], None]

_LAST_LINES = 12
_RANK = re.compile(r"\[rank\d+\]: ?")
"""The prefix that PyTorch puts before the lines of a traceback."""
_START_S = 120.0
_CANCEL_S = 5.0
_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""
The environment variable that makes PyTorch ask for huge pages for large CPU tensors.
With small pages, zeroing a new tensor takes as long as computing with it.
"""
_FAILURE_S = 10.0
"""
The seconds to wait for the failed rank to end, after other ranks lost their connection
to it.
"""


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|\bMemoryError\b")
"""Matches the messages of PyTorch and Python when a device has no memory left."""


class OutOfMemory(DistIRError):
    """Raised if a rank needs more memory than its device has."""


class Spawner:
    """
    A process that has loaded PyTorch and forks ranks (`distir.launch.spawner`).

    The process has an operating-system session of its own, so that it can be killed
    together with its children. Used as a context manager, a spawner runs several
    packages with one start-up. `environment` adds variables to the environment of its
    processes.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> subprocess.Popen[bytes]:
        """
        Returns the running process. Starts the process if it does not run yet. Raises
        DistIRError if PyTorch cannot be loaded.
        """
        if self._process is None:
            environment = {
                **_HUGE_PAGES,
                **os.environ,
                "OMP_NUM_THREADS": "1",
                **self._environment,
            }
            self._process = subprocess.Popen(
                # -P: the current folder must not shadow modules.
                [sys.executable, "-P", str(Path(__file__).with_name("spawner.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,  # so that select sees every event
                env=environment,
                start_new_session=True,
            )
            ready = self.read_event(time.monotonic() + _START_S)
            if ready is None or not ready.get("ready"):
                stderr = b""
                if self._process.poll() is not None and self._process.stderr:
                    stderr = self._process.stderr.read()
                self.kill()
                raise DistIRError(
                    "cannot start PyTorch, which runs programs; install the extra "
                    f"`distir[torch]`: {_last(stderr.decode(errors='replace'))}"
                )
        return self._process

    def submit(self, job: Mapping[str, Any]) -> None:
        """Starts a job. `read_event` reports the end of each rank of the job."""
        process = self.start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()

    def read_event(self, deadline: float) -> dict[str, Any] | None:
        """
        Returns the next event, or None if there is none before `deadline` or the
        process has ended.
        """
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout
        wait = max(0.0, deadline - time.monotonic())
        if not select.select([stdout], [], [], wait)[0]:
            return None
        line = stdout.readline()
        return json.loads(line) if line else None

    def cancel(self) -> None:
        """
        Kills the running ranks. The spawner process stays, unless it does not answer in
        time.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return self.kill()
        assert process.stdin is not None
        try:
            process.stdin.write(b'{"cancel": true}\n')
            deadline = time.monotonic() + _CANCEL_S
            while event := self.read_event(deadline):
                if event.get("cancel"):
                    return None
        except OSError:
            pass
        self.kill()

    @property
    def alive(self) -> bool:
        """Whether the spawner process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kills the spawner process and every rank that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()  # at which it kills and awaits its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _last(text: str) -> str:
    """
    Returns the last lines of a log in one line. Of each traceback, only the error and
    the line that raised the error are kept.
    """
    lines: list[str] = []
    place: str | None = None
    for prefixed in text.splitlines():
        line = _RANK.sub("", prefixed)
        if line.startswith("Traceback (most recent call last)"):
            place = ""
        elif place is None or not line[:1].isspace():
            if line.strip():
                lines.append(line.strip() + (f" ({place})" if place else ""))
                place = None
        elif line.strip().startswith("File "):
            place = line.strip()
    return " | ".join(lines[-_LAST_LINES:]) or "(it printed nothing)"


@dataclass(frozen=True)
class LearningRate:
    """
    The schedule of the learning rate.

    - `warmup`: the number of first steps in which the rate grows to its full value;
    - `decay`: the shape of the rate after the warm-up: `linear`, `cosine`, or `none`;
    - `least`: the rate at the end of the decay, in step `until` (None: the last step).
    """

    warmup: int = 0
    decay: str = "none"
    least: float = 0.0
    until: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of the package's `main.py` that set this schedule."""
        found = ["--warmup", str(self.warmup), "--decay", self.decay]
        found += ["--min-lr", repr(self.least)]
        return found + (["--decay-until", str(self.until)] if self.until else [])


@dataclass(frozen=True)
class Training:
    """
    Settings of a training run with a package that contains a training step.

    - `steps`: the last step; the first step is 1.
    - `seed`: the seed of parameters that no file contains.
    - `checkpoints`: the folder of checkpoints; `save_every`: the number of steps
      between two checkpoints (0: only one, after the last step); `resume`: the step
      whose checkpoint the run continues from, `latest` for the latest checkpoint, or
      `if-any` for the latest one if there is one.
    - `learning_rate`: the schedule of the learning rate; `settings`: instead of a
      schedule, the values for all steps by name (`learning_rate`, `weight_decay`).
    - `data`: the source of inputs and labels, if they are not among the inputs of the
      run: `FILE.py:FUNCTION`, or `NAME=FILE.npy` for each, with absolute paths;
      `data_workers`: the number of processes that load data; `eval_data`: the source of
      data for an evaluation after every `eval_every` steps (0: no evaluation).
    - `log`: a file of JSON lines for losses; `tensorboard`: a folder for losses.
    """

    steps: int
    seed: int = 0
    checkpoints: Path | None = None
    save_every: int = 0
    resume: str = ""
    learning_rate: LearningRate = LearningRate()
    settings: Mapping[str, Sequence[float]] = field(
        default_factory=dict[str, Sequence[float]]
    )
    data: Sequence[str] = ()
    data_workers: int = 0
    eval_every: int = 0
    eval_data: Sequence[str] = ()
    log: Path | None = None
    tensorboard: Path | None = None

    def arguments(self, folder: Path) -> list[str]:
        """
        Returns the arguments of the package's `main.py` for this run. Writes the files
        in these arguments to `folder`.
        """
        found = ["--steps", str(self.steps), "--seed", str(self.seed)]
        found += self.learning_rate.arguments
        if self.settings:
            file = folder / "settings.json"
            values = {name: list(each) for name, each in self.settings.items()}
            write_text(file, json.dumps(values))
            found += ["--settings", str(file)]
        for option, texts in (("--data", self.data), ("--eval-data", self.eval_data)):
            for text in texts:
                found += [option, text]
        found += ["--data-workers", str(self.data_workers)]
        found += ["--eval-every", str(self.eval_every)]
        for option, path in (
            ("--log-file", self.log),
            ("--tensorboard", self.tensorboard),
        ):
            if path is not None:
                found += [option, str(path.resolve())]
        if self.checkpoints is not None:
            found += ["--checkpoint-dir", str(self.checkpoints.resolve())]
            found += ["--save-every", str(self.save_every)]
        if self.resume:
            found += ["--resume", self.resume]
        return found


class _Logs:
    """The logs of the ranks. The output of rank 0 is reported as progress."""

    def __init__(self, folder: Path, progress: Progress | None):
        self.folder = folder
        self.progress = progress
        self._offset = 0

    def text(self, rank: int) -> str:
        path = self.folder / f"{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pass_on(self) -> bool:
        """
        Reports the new complete lines of rank 0, and returns whether there were any.
        """
        path = self.folder / "0.log"
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        if self.progress is not None:
            for line in whole.decode(errors="replace").splitlines():
                self.progress(line)
        return bool(whole)


def run_package(
    directory: str | Path,
    ranks: int | None = None,
    backend: str = "gloo",
    inputs: Mapping[str, npt.NDArray[Any]] | None = None,
    weights: str | Path | Sequence[Path] | None = None,
    timeout_s: float = 600.0,
    progress: Progress | None = None,
    spawner: Spawner | None = None,
    training: Training | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """
    Runs the package in `directory` (written by `write_package`) with one process per
    rank on this machine, and returns the whole results by name.

    `inputs` are whole arrays by argument name, and take precedence over `weights`.
    `weights` is a safetensors file, a folder of such files or a checkpoint of PyTorch
    (DCP), or a list of these; each tensor comes from the first of these sources that
    contains it. `ranks`, if given, must be the number of processes that the package
    needs. `progress` is called with lines of text. A given `spawner` is used and left
    running.

    With `training`, the results are those that update no argument, and the final
    parameters. A scalar result has one number per step. Inputs and labels may have an
    additional first dimension of steps. Parameters may be missing, and are then
    initialised.

    Raises DistIRError if a rank fails, is killed or is not done after `timeout_s`
    seconds (in a training: if the next step takes longer than that). No process is left
    running.
    """
    directory = Path(directory).resolve()
    manifest = read_manifest(directory)
    needed = int(manifest["processes"])
    if ranks is not None and ranks != needed:
        raise DistIRError(
            f"the program in {directory} is for {needed} ranks and cannot run on {ranks}"
        )
    if training is not None and not manifest.get("trains"):
        raise DistIRError(
            f"the program in {directory} updates no argument (dist.updates), so that it "
            f"cannot be trained; make a training step with `differentiate`"
        )
    own = spawner is None
    spawner = spawner or Spawner()
    if not sys.dont_write_bytecode:
        # Compiles once for all ranks. Nothing happens in a read-only folder.
        compile_dir(directory, maxlevels=0, quiet=2)
    try:
        with tempfile.TemporaryDirectory(prefix="distir-") as name:
            folder = Path(name)
            arguments: list[str] = []
            if inputs:
                save_weights(folder / "inputs.safetensors", inputs)
                arguments += ["--inputs", str(folder / "inputs.safetensors")]
            if isinstance(weights, str | Path):
                weights = [Path(weights)]
            for path in weights or ():
                arguments += ["--weights", str(path.resolve())]
            if training is not None:
                arguments += training.arguments(folder)
            outputs = folder / "outputs.safetensors"
            arguments += ["--outputs", str(outputs)]
            keeps = training is not None and training.checkpoints is not None
            keeps = keeps or any(path.is_dir() for path in weights or ())
            run_script(
                directory / "main.py",
                arguments,
                needed,
                folder,
                backend=backend,
                timeout_s=timeout_s,
                progress=progress,
                spawner=spawner,
                renews=training is not None,
                imports=("torch.distributed.checkpoint",) if keeps else (),
            )
            if not manifest["results"]:
                return {}
            found = load_weights(outputs)
            # A training returns results that update nothing, then all final parameters.
            names = manifest["results"] if training is None else found
            return {name: np.array(found[name]) for name in names}
    finally:
        if own:
            spawner.kill()


def run_script(
    script: Path,
    arguments: Sequence[str],
    ranks: int,
    folder: Path,
    *,
    backend: str,
    timeout_s: float,
    progress: Progress | None,
    spawner: Spawner,
    renews: bool = False,
    imports: Sequence[str] = (),
) -> None:
    """
    Runs a script on every rank.

    The script gets `arguments`, and the options by which ranks find each other:
    `--backend`, `--timeout`, `--init-method`. The ranks' logs are written to `folder`.
    The modules in `imports` are loaded once, for all ranks and for later scripts. With
    `renews`, each line of progress restarts the time limit of `timeout_s` seconds.
    Raises DistIRError if a rank fails or exceeds the time limit.
    """
    environment = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    meeting = f"file://{folder / 'rendezvous'}"
    common = ["--backend", backend, "--timeout", str(timeout_s)]
    job = {
        "ranks": ranks,
        "script": str(script),
        "arguments": [*arguments, *common, "--init-method", meeting],
        "imports": list(imports),
        "environment": environment,
        "logs": str(folder),
    }
    _supervise(spawner, job, ranks, timeout_s, _Logs(folder, progress), renews)


def read_manifest(directory: Path) -> dict[str, Any]:
    """
    Returns the manifest of the package in `directory`. Raises DistIRError if the folder
    contains no readable manifest.
    """
    path = directory / "manifest.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DistIRError(
            f"{directory} does not hold a lowered program ({error}); "
            f"write one with `distir lower`"
        ) from error


def _supervise(
    spawner: Spawner,
    job: Mapping[str, Any],
    ranks: int,
    timeout_s: float,
    logs: _Logs,
    renews: bool,
) -> None:
    """
    Waits until every rank has ended successfully. If a rank fails or `timeout_s`
    seconds pass, ends all ranks and raises DistIRError. With `renews`, each report of
    progress restarts the time limit.
    """
    done = False
    try:
        spawner.start()
        deadline = time.monotonic() + timeout_s
        spawner.submit(job)
        left = set(range(ranks))
        while left:
            event = spawner.read_event(min(deadline, time.monotonic() + 0.1))
            if logs.pass_on() and renews:
                deadline = time.monotonic() + timeout_s
            if event is not None:
                left.discard(event["rank"])
                if event["code"] != 0:
                    raise _failure(spawner, event, ranks, logs)
            elif not spawner.alive:
                raise DistIRError(
                    "the process that starts the ranks was killed; run the program again"
                )
            elif time.monotonic() >= deadline:
                raise _timeout(left, timeout_s, logs)
        done = True
    finally:
        if not done:
            spawner.cancel()


def _failure(
    spawner: Spawner, event: Mapping[str, Any], ranks: int, logs: _Logs
) -> DistIRError:
    """
    Returns the error for a failed rank. If one rank fails, other ranks lose the
    connection to it and may be reported first; the error names the rank that failed by
    itself.
    """
    failed = {event["rank"]: event["code"]}

    def lost(rank: int) -> bool:
        return failed[rank] > 0 and "onnection" in logs.text(rank)

    start = time.monotonic()
    while len(failed) < ranks:
        # The rank whose connection they lost may take a while to end.
        wait = _FAILURE_S if all(map(lost, failed)) else 0.5
        more = spawner.read_event(start + wait)
        if more is None:
            break
        if more["code"] != 0:
            failed[more["rank"]] = more["code"]

    def blame(rank: int) -> tuple[bool, bool, int]:
        return (failed[rank] > 0, lost(rank), rank)

    rank = min(failed, key=blame)
    code = failed[rank]
    text = logs.text(rank)
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    # Linux kills processes when there is no memory left.
    full = _NO_MEMORY.search(text) or code == -signal.SIGKILL
    kind = OutOfMemory if full else DistIRError
    if errors and code > 0:
        return kind(f"rank {rank}: {errors[-1].removeprefix('error: ')}")
    how = (
        f"was killed by signal {signal.Signals(-code).name}"
        if code < 0
        else f"failed with exit code {code}"
    )
    return kind(f"rank {rank} {how}. The last it said: {_last(text)}")


def _timeout(left: set[int], timeout_s: float, logs: _Logs) -> DistIRError:
    names = ", ".join(map(str, sorted(left)))
    said = _last(logs.text(min(left)))
    return DistIRError(
        f"rank{'s' if len(left) > 1 else ''} {names} did not finish within "
        f"{timeout_s:g} seconds and had to be stopped; allow more time, or look for a "
        f"rank that waits for another one. The last that rank {min(left)} said: {said}"
    )
