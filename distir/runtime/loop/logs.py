"""Reports of a training: lines of text, JSON lines and TensorBoard."""

import json
import time
from pathlib import Path

import torch.distributed as dist

from .. import runtime


class Log:
    """
    The log of a training on rank 0.

    Each step is reported as a line of text. If there is a file, each step adds a line
    of JSON, such as `{"step": 3, "loss": 2.5, "seconds": 0.1}`, after the lines of
    earlier runs. If there is a folder for TensorBoard, scalars are written to it.
    """

    def __init__(self, file="", tensorboard=""):
        self.file = self.writer = None
        self.last = time.perf_counter()
        if dist.get_rank() != 0:
            return
        if tensorboard:
            self.writer = _summary_writer(tensorboard)
        if file:
            try:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                self.file = Path(file).open("a", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise _unwritable(file, error) from error

    def step(self, step, steps, numbers, **others):
        """
        Reports the results of a step that are numbers, by name. `others` are written to
        files only, not to the line of text.
        """
        text = ", ".join(f"{name} {value:.9g}" for name, value in numbers.items())
        runtime.report(f"step {step} of {steps}: {text}")
        now = time.perf_counter()
        self._write({"step": step, **numbers, **others, "seconds": now - self.last})
        self.last = now

    def evaluation(self, step, numbers):
        """Reports the mean results of an evaluation, by name."""
        text = ", ".join(f"{name} {value:.9g}" for name, value in numbers.items())
        runtime.report(f"evaluation after step {step}: {text}")
        named = {f"evaluation {name}": value for name, value in numbers.items()}
        self._write({"step": step, **named})
        self.last = time.perf_counter()

    def _write(self, entry):
        if self.file is not None:
            try:
                self.file.write(json.dumps(entry) + "\n")
                self.file.flush()
            except OSError as error:  # such as a disk that is full
                file, self.file = self.file, None
                raise _unwritable(file.name, error) from error
        if self.writer is not None:
            step = entry["step"]
            for name, value in entry.items():
                if name != "step":
                    self.writer.add_scalar(name.replace(" ", "/"), value, step)

    def close(self):
        """Closes the files."""
        for open_file in (self.file, self.writer):
            if open_file is not None:
                open_file.close()


def _unwritable(file, error):
    return runtime.ProgramError(f"cannot write the log {file}: {error.strerror}")


def _summary_writer(folder):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise runtime.ProgramError(
            f"--tensorboard needs the package tensorboard, which is not installed "
            f"({error}); install it, or write JSON lines with --log-file"
        ) from error
    return SummaryWriter(folder)
