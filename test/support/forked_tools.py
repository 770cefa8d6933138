"""
Runs the tools of lit tests quickly: in processes that have imported the project.

Importing xDSL and ONNX takes half a second of each command of a lit test. `lit.cfg.py`
imports all that once, before lit forks its workers. A worker runs `distir-opt` and `filecheck`
itself, as a fork has ten megabytes of pages to copy, which takes longer than most of these
commands. It starts `distir`, whose commands may start processes and threads, as a fork of itself.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import IO, Any, NoReturn, TextIO

TOOLS = ("distir", "distir-opt", "filecheck")
FORKED = ("distir",)

PRELOADED = (
    "distir.dialects.onnx",
    "distir.dialects.train",
    "distir.gradients.rules",
    "distir.interpreters.train",
    "distir.lowering.emitters",
    "distir.scheduling.actions",
    "distir.sharding.rules",
    "distir.text",
)
"""What commands import once they run, besides passes and targets: registries above all."""


class ForkedTool:
    """
    A running tool, with what lit uses of a `Popen`. `main` is its entry point; streams and
    environment are given as to `Popen`, and are text where they are pipes.
    """

    def __init__(
        self, main: Callable[[], object], arguments: Sequence[str], **given: Any
    ) -> None:
        self.stdin, child_in = _stream(given["stdin"], is_input=True)
        self.stdout, child_out = _stream(given["stdout"])
        if given["stderr"] == STDOUT:
            self.stderr, child_err = None, child_out
        else:
            self.stderr, child_err = _stream(given["stderr"])
        self.returncode: int | None = None
        self.pid = os.fork()
        streams = (child_in, child_out, child_err)
        if self.pid == 0:
            _run(main, arguments, streams, given["cwd"], given["env"])
        for own, theirs in zip(
            (self.stdin, self.stdout, self.stderr), streams, strict=True
        ):
            if own is not None:
                os.close(theirs)

    def communicate(self) -> tuple[str | None, str | None]:
        """Returns what it says on its pipes until it ends."""
        # Both are read at once: a tool waits where one of them is full.
        with ThreadPoolExecutor(1) as reader:
            errors = reader.submit(_text, self.stderr)
            output = _text(self.stdout)
            self.wait()
            return output, errors.result()

    def wait(self) -> int:
        """Returns its exit code, a negative one for a signal, when it has ended."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class FinishedTool:
    """
    A tool that has run in this process, with what lit uses of a `Popen`. Its output is in files
    where a `Popen` has pipes: the next command of a pipeline may be another process.
    """

    def __init__(
        self, main: Callable[[], object], arguments: Sequence[str], **given: Any
    ) -> None:
        self.stdin = None
        if given["stdin"] == PIPE:
            self.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
        self.stdout, out = _file(given["stdout"])
        self.stderr, err = (
            (None, out) if given["stderr"] == STDOUT else _file(given["stderr"])
        )
        before = sys.argv, sys.stdin, dict(os.environ), Path.cwd()
        # Tools may close their input, from which lit reads afterwards.
        source = os.dup((self.stdin or given["stdin"]).fileno())
        sys.argv, sys.stdin = list(arguments), os.fdopen(source)
        _set_environment(given["env"])
        os.chdir(given["cwd"])
        try:
            with redirect_stdout(out), redirect_stderr(err):
                self.returncode = _exit_code(main)
        finally:
            sys.stdin.close()
            sys.argv, sys.stdin = before[:2]
            _set_environment(before[2])
            os.chdir(before[3])
        for stream, ours in ((out, self.stdout), (err, self.stderr)):
            stream.flush()
            if ours is not None:
                ours.seek(0)
            elif stream is not out:
                stream.close()

    def communicate(self) -> tuple[str | None, str | None]:
        """Returns its output and its errors."""
        return _text(self.stdout), _text(self.stderr)

    def wait(self) -> int:
        """Returns its exit code."""
        return self.returncode


def _file(given: Any) -> tuple[TextIO | None, TextIO]:
    """Returns our end of an output, if it is asked for, and the end that the tool writes to."""
    if given == PIPE:
        number, path = tempfile.mkstemp()
        os.unlink(path)
        file = os.fdopen(number, "w+", errors="replace")
        return file, file
    number = given if isinstance(given, int) else given.fileno()
    return None, os.fdopen(os.dup(number), "w")


def _set_environment(values: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _text(stream: IO[str] | None) -> str | None:
    """Returns all that comes from a pipe."""
    return None if stream is None else stream.read()


def _stream(given: Any, is_input: bool = False) -> tuple[IO[str] | None, int]:
    """Returns our end of a stream, if it is a pipe, and the descriptor of the tool's end."""
    if given == PIPE:
        read, write = os.pipe()
        if is_input:
            return os.fdopen(write, "w"), read
        return os.fdopen(read, errors="replace"), write
    return None, given if isinstance(given, int) else given.fileno()


def _run(
    main: Callable[[], object],
    arguments: Sequence[str],
    streams: Sequence[int],
    folder: str,
    environment: Mapping[str, str],
) -> NoReturn:
    """Runs a command in this process, which was forked for it, and ends it."""
    code = 1
    try:
        # Two of them may be the same, or have the number of another one.
        copies = [os.dup(stream) for stream in streams]
        for target, copy in enumerate(copies):
            os.dup2(copy, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        os.chdir(folder)
        _set_environment(environment)
        sys.argv = list(arguments)
        code = _exit_code(main)
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(main: Callable[[], object]) -> int:
    """Runs a command in this process, and returns the exit code that it ends with."""
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        return 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0 if code is None else 1


def fork_tools(folder: Path) -> Callable[..., Popen[str] | ForkedTool | FinishedTool]:
    """
    Imports the project, and returns a function that starts processes as `Popen` does, but runs
    the tools of this folder in this process or as forks of it.
    """
    known = entry_points(group="console_scripts")
    mains = {str(folder / name): known[name].load() for name in TOOLS}
    for name in PRELOADED:
        import_module(name)
    passes, targets = import_module("distir.passes"), import_module("distir.lowering")
    for load in (
        *passes.get_all_passes().values(),
        *targets.get_all_targets().values(),
    ):
        load()
    _warm_up({Path(path).name: main for path, main in mains.items()})
    gc.freeze()  # what is loaded stays, and its pages stay shared
    # A short command makes little garbage.
    gc.set_threshold(200_000, 20, 20)

    def start(
        arguments: Sequence[str], **given: Any
    ) -> Popen[str] | ForkedTool | FinishedTool:
        main = mains.get(given["executable"])
        if main is None:
            return Popen(arguments, **given)
        if Path(given["executable"]).name not in FORKED:
            return FinishedTool(main, arguments, **given)
        return ForkedTool(main, arguments, **given)

    return start


def _warm_up(mains: Mapping[str, Callable[[], object]]) -> None:
    """
    Distributes, differentiates, simulates and lowers a small program: what is computed once,
    such as the classes of operators, no command that is forked computes anew.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        model, out = f"{folder}/m.mlir", f"{folder}/out"
        step = "differentiate{loss=mse optimizer=sgd},distribute{d=2 p=2 k=2},simulate"
        build = ("mlp", "--layers", "2", "--d-model", "8", "--batch", "8", "-o", model)
        given = sys.argv
        for arguments in (
            ("distir", "build", *build),
            ("distir-opt", model, "-p", step + "{cluster=dgx2}", "-o", out),
            ("distir-opt", model, "-p", "distribute{d=2}", "-t", "torch", "-o", out),
        ):
            sys.argv = list(arguments)
            with suppress(SystemExit):
                mains[arguments[0]]()
        sys.argv = given
