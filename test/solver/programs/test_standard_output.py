"""What solvers print is kept away from standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.training_programs import training_mlp

from distir.text import ProgramParser, new_context

START = """
import ctypes, os, subprocess, sys, threading
from distir.solver.programs.standard_output import nothing_on_stdout
c = ctypes.CDLL(None)
"""


def printed_by(code: str, **environment: str) -> tuple[str, str]:
    """What a process prints to stdout, which is a pipe, and to stderr."""
    command = [sys.executable, "-c", START + code]
    # Without PYTHONUNBUFFERED, which C heeds too.
    known = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=known | environment, check=True
    )
    return done.stdout, done.stderr


def test_what_c_code_prints() -> None:
    """Also what is in its buffer at the beginning or the end."""
    assert printed_by("""
c.printf(b"1 before\\n")
print("2 before")
with nothing_on_stdout():
    c.printf(b"in a buffer\\n")
    os.write(1, b"written at once\\n")
c.printf(b"3 after\\n")
c.fflush(None)
print("4 after")
""") == ("2 before\n1 before\n3 after\n4 after\n", "")


def test_what_python_prints_comes_through() -> None:
    assert printed_by("""
def work():
    print("from a thread")
with nothing_on_stdout():
    print("from this one")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print("after")
""") == ("from this one\nfrom a thread\nafter\n", "")


def test_other_threads_and_processes() -> None:
    assert printed_by("""
def work():
    c.printf(b"from C in a thread\\n")
    with nothing_on_stdout():
        subprocess.run(["echo", "from a process"])
with nothing_on_stdout():
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    subprocess.run(["echo", "from another process"])
    child = os.fork()
    if child == 0:
        os.write(1, b"of the child\\n")
        os._exit(0)
    os.waitpid(child, 0)
subprocess.run(["echo", "after"])
""") == ("of the child\nafter\n", "")


def test_an_error_ends_it() -> None:
    assert printed_by("""
@nothing_on_stdout()
def fail():
    os.write(1, b"dropped\\n")
    raise ValueError
for _ in range(2):
    try: fail()
    except ValueError: os.write(1, b"kept\\n")
""") == ("kept\nkept\n", "")


def test_without_a_standard_output() -> None:
    assert printed_by("""
os.close(1)
with nothing_on_stdout():
    print("goes nowhere", file=sys.stderr)
sys.stdout = None
with nothing_on_stdout(): pass
""") == ("", "goes nowhere\n")


def test_it_is_shown_for_debugging() -> None:
    assert printed_by(
        """
with nothing_on_stdout():
    os.write(1, b"a banner\\n")
""",
        DISTIR_DEBUG="1",
    ) == ("", "a banner\n")


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_programs_in_pipes(solver: str, tmp_path: Path) -> None:
    """HiGHS 1.16 prints two lines when it is made; nothing but the program comes out."""
    file = tmp_path / "m.mlir"
    file.write_text(str(training_mlp(batch=16)))
    options = f'axes="d=2","t=2" cluster=dgx2 solver={solver}'
    tool = "import sys; from distir.tools.distir_opt import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", tool, str(file), "-p", f"search-sharding{{{options}}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("builtin.module")
    module = ProgramParser(new_context(), done.stdout).parse_module()
    module.verify()
    assert "HiGHS" not in done.stdout
