"""
Runs fuzzers in rounds, several at once, and collects what they find.

A round is a Hypothesis test with a seed and some examples, in a process of its own: forked
from one that has all modules loaded, so that every round starts from the same state and
its seed is all that is needed to see it again. The process is limited in memory and each
example in time; one that hangs, eats memory or dies is a finding like any other. A round
ends with its first finding.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

MEMORY = 2 << 30
"""Bytes of address space that a round may take, unless its fuzzer says otherwise."""


@dataclass(frozen=True)
class Fuzzer:
    """
    - `case` draws and checks an example and says, for each case in it, what came of it.
    - `prepare` is called once, before the first round.
    - `examples` is how many examples a round has, `seconds` how long one may take.
    - `share` is how much of the time the fuzzer gets.
    - `memory`: bytes of address space that a round may take.
    """

    name: str
    what: str
    case: Callable[[Callable[[st.SearchStrategy[Any]], Any]], list[str]]
    examples: int
    seconds: int
    share: float
    prepare: Callable[[], object] = lambda: None
    memory: int = MEMORY


@dataclass(frozen=True)
class Finding:
    """Something that a fuzzer found in the round with this seed."""

    fuzzer: str
    seed: int
    example: int
    message: str
    where: str

    @property
    def command(self) -> str:
        """What shows it again."""
        return f"make fuzz CASE={self.fuzzer}:{self.seed}"


@dataclass
class Tally:
    """What came of the rounds of a fuzzer."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    rounds: int = 0
    busy_s: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values()) + len(self.findings)


def run_round(
    fuzzer: Fuzzer,
    round_seed: int,
    report: Callable[[dict[str, Any]], None],
    shrink: bool = False,
) -> BaseException | None:
    """
    Runs the examples of a round in this process, telling `report` before each one and
    what came of it; the error that ended the round, if one did. With `shrink`, Hypothesis
    looks for a smaller example that fails too.
    """
    number = 0

    def one(draw: Any) -> list[str]:
        nonlocal number
        report({"example": number})
        number += 1
        _watch(fuzzer.seconds)
        labels = fuzzer.case(draw)
        _watch(0)
        report({"outcomes": labels})
        return labels

    @seed(round_seed)
    @settings(
        max_examples=fuzzer.examples,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(st.composite(one)())
    def test(labels: list[str]) -> None:
        pass

    try:
        test()
    except (Exception, BaseExceptionGroup) as error:
        return error
    finally:
        _watch(0)
    return None


def _watch(seconds: int) -> None:
    """
    Ends this process after so many seconds of its own, or, where it waits for others, after
    ten times as long; 0 calls that off.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)


def describe_error(error: BaseException) -> tuple[str, str]:
    """An error's message and the innermost places in this repository."""
    # Not the whole programs that xDSL adds, nor what Hypothesis does.
    notes = [
        note[:1000]
        for note in getattr(error, "__notes__", [])
        if "builtin.module" not in note[:200] and "generating" not in note
    ]
    text = f"{type(error).__name__}: {str(error)[:800]} {' '.join(notes)}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/distir/" in f.filename or "/fuzz/" in f.filename]
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in own[-3:]]
    return " ".join(text.split()), " < ".join(reversed(places))


def limit_memory(fuzzer: Fuzzer) -> None:
    """Limits the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (fuzzer.memory, fuzzer.memory))


@dataclass
class _Process:
    """A round under way."""

    fuzzer: Fuzzer
    seed: int
    pid: int
    stream: int
    started: float
    rest: bytes = b""
    example: int = 0


def _start(fuzzer: Fuzzer, round_seed: int) -> _Process:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Process(fuzzer, round_seed, pid, reading, time.monotonic())
    os.close(reading)
    os.setpgid(0, 0)  # so that processes which a command starts can be ended with it
    _become_quiet()

    def report(line: dict[str, Any]) -> None:
        os.write(writing, (json.dumps(line) + "\n").encode())

    try:
        limit_memory(fuzzer)
        error = run_round(fuzzer, round_seed, report)
        if error is not None:
            message, where = describe_error(error)
            report({"message": message, "where": where})
    except BaseException as error:
        report({"message": f"the fuzzer failed: {error!r}", "where": "runner"})
    finally:
        os._exit(0)


def _become_quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _killed(status: int, fuzzer: Fuzzer) -> str:
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if ended_by in (signal.SIGALRM, signal.SIGPROF):
        return f"it took longer than {fuzzer.seconds} s"
    return f"the process died with status {status}"


def _read(process: _Process, tally: Tally) -> bool:
    """Takes in what a round reports; false when it has ended."""
    data = os.read(process.stream, 1 << 16)
    lines = (process.rest + data).split(b"\n")
    process.rest = lines.pop()
    for text in lines:
        line = json.loads(text)
        process.example = line.get("example", process.example)
        tally.outcomes.update(line.get("outcomes", ()))
        if "message" in line:
            tally.findings.append(
                Finding(
                    process.fuzzer.name,
                    process.seed,
                    process.example,
                    line["message"],
                    line["where"],
                )
            )
    return bool(data)


def _end(process: _Process, tally: Tally) -> None:
    _, status = os.waitpid(process.pid, 0)
    os.close(process.stream)
    tally.rounds += 1
    tally.busy_s += time.monotonic() - process.started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if status:
        message = _killed(status, process.fuzzer)
        tally.findings.append(
            Finding(process.fuzzer.name, process.seed, process.example, message, "")
        )


def run_rounds(
    work: Iterator[tuple[Fuzzer, int]],
    jobs: int,
    tallies: dict[str, Tally],
    show: Callable[[Finding], None],
) -> None:
    """
    Runs rounds (a fuzzer and a seed each) in that many processes until there are no
    more. `work` may look at `tallies` to choose the next one.
    """
    running: dict[int, _Process] = {}
    try:
        while True:
            while len(running) < jobs and (item := next(work, None)) is not None:
                process = _start(*item)
                running[process.stream] = process
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [])
            for stream in ready:
                process = running[stream]
                tally = tallies[process.fuzzer.name]
                before = len(tally.findings)
                if not _read(process, tally):
                    del running[stream]
                    _end(process, tally)
                for finding in tally.findings[before:]:
                    show(finding)
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)


def next_fuzzer(fuzzers: Sequence[Fuzzer], tallies: dict[str, Tally]) -> Fuzzer:
    """The one that has had the least of its share of the time."""
    return min(fuzzers, key=lambda f: (tallies[f.name].busy_s + 1e-3) / f.share)
