"""
A server that starts tools quickly: one process imports the project, and forks for each
command.

Importing xDSL and ONNX takes half a second of each command of a lit test. `lit.cfg.py`
starts this server and puts launchers under the tools' names first in the PATH; they send
their arguments, environment and streams here, and end as the forked process does.
"""

from __future__ import annotations

import atexit
import gc
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

TOOLS = ("distir", "distir-opt", "filecheck")

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

LAUNCHER = """#!{python} -IS
import _socket, marshal, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in range(3))
server.sendmsg([b"fds"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(marshal.dumps((sys.argv, os.getcwd(), dict(os.environ))))
server.shutdown(_socket.SHUT_WR)
sys.exit(int(server.recv(16) or b"1"))
"""
"""
The text of a launcher. It only imports what is built into Python: `json` and `socket` would
take half of its time.
"""


def launchers() -> Path:
    """
    Starts a server that ends with this process; returns the folder of the tools that use
    it.
    """
    folder = Path(tempfile.mkdtemp(prefix="lit-"))
    address = folder / "socket"
    tools = folder / "bin"
    tools.mkdir()
    for name in TOOLS:
        launcher = tools / name
        launcher.write_text(
            LAUNCHER.format(python=sys.executable, address=str(address))
        )
        launcher.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, str(address)],
        stdin=subprocess.PIPE,  # closed when this process ends, however it does
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    server.stdout.readline()
    return tools


def serve(address: str) -> None:
    """Answers commands until standard input is closed."""
    known = entry_points(group="console_scripts")
    mains = {name: known[name].load() for name in TOOLS}
    for name in PRELOADED:
        import_module(name)
    passes, targets = import_module("distir.passes"), import_module("distir.lowering")
    for load in (
        *passes.get_all_passes().values(),
        *targets.get_all_targets().values(),
    ):
        load()
    _warm_up(mains)
    gc.freeze()  # what is loaded stays, and its pages stay shared
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(Path(address).parent)
            return
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = _run(client, mains)
            client.sendall(str(code).encode())
            os._exit(0)
        client.close()


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
        for arguments in (
            ("distir", "build", *build),
            ("distir-opt", model, "-p", step + "{cluster=dgx2}", "-o", out),
            ("distir-opt", model, "-p", "distribute{d=2}", "-t", "torch", "-o", out),
        ):
            sys.argv = list(arguments)
            with suppress(SystemExit):
                mains[arguments[0]]()


def _run(client: socket.socket, mains: Mapping[str, Callable[[], object]]) -> int:
    """Runs a command in this process; returns its exit code."""
    _, streams, _, _ = socket.recv_fds(client, 3, 3)
    with client.makefile("rb") as text:
        arguments, folder, environment = marshal.loads(text.read())
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    try:
        code = mains[Path(arguments[0]).name]()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code) if isinstance(code, int) else 0


if __name__ == "__main__":
    serve(sys.argv[1])
