"""
`make fuzz`: all fuzzers for some minutes, or one round again.

```sh
make fuzz MINUTES=30                # prints the seed that it starts from
make fuzz MINUTES=30 SEED=17        # the same rounds again
make fuzz MINUTES=5 ONLY=layouts,mutants
make fuzz CASE=layouts:170003       # one round, with the smallest example that fails
```

Ends with a table with a row for each fuzzer, and exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuzz import files, layouts, mutants, operators, options, training
from fuzz.catalogue import cases
from fuzz.runner import (
    Finding,
    Fuzzer,
    Tally,
    limit_memory,
    next_fuzzer,
    run_round,
    run_rounds,
)
from rich.console import Console
from rich.table import Table

FUZZERS = [
    Fuzzer(
        "layouts",
        "random layouts of random programs, all ranks in lock-step",
        layouts.case,
        layouts.EXAMPLES,
        60,
        3,
        cases,
    ),
    Fuzzer(
        "training",
        "random training steps under every strategy",
        training.case,
        training.EXAMPLES,
        120,
        3,
    ),
    Fuzzer(
        "mutants",
        "mistakes in distributed programs",
        mutants.case,
        mutants.EXAMPLES,
        60,
        3,
        mutants.prepare,
    ),
    Fuzzer(
        "operators",
        "single operators with extreme inputs, next to PyTorch and onnxruntime",
        operators.case,
        operators.EXAMPLES,
        20,
        4,
        operators.prepare,
    ),
    Fuzzer(
        "options",
        "options of `parallelize` on one process",
        options.case,
        options.EXAMPLES,
        60,
        1,
        options.prepare,
        6 << 30,
    ),
    Fuzzer(
        "files",
        "mutated files through the command line",
        files.case,
        files.EXAMPLES,
        20,
        4,
        files.prepare,
    ),
]

STRIDE = 1_000_000
"""Round n of a run with seed s has the seed s * STRIDE + n."""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument(
        "--rounds", type=int, help="of each fuzzer, in place of minutes"
    )
    parser.add_argument(
        "--part", type=int, default=1, help="rounds have one of so many examples"
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join(f.name for f in FUZZERS))
    parser.add_argument("--case", metavar="FUZZER:SEED")
    return parser.parse_args(arguments)


def _prepare() -> None:
    """
    Prepares all fuzzers, whichever are to run: Hypothesis takes numbers out of the modules
    that are loaded, so that these are part of what a seed means.
    """
    for fuzzer in FUZZERS:
        fuzzer.prepare()


def _again(case: str) -> int:
    """Runs one round and shows all of what it finds."""
    name, _, seed = case.partition(":")
    (fuzzer,) = [f for f in FUZZERS if f.name == name]
    _prepare()
    limit_memory(fuzzer)
    error = run_round(fuzzer, int(seed), lambda line: None, shrink=True)
    if error is None:
        print(f"{case}: no finding")
        return 0
    traceback.print_exception(error)
    return 1


def _work(
    fuzzers: Sequence[Fuzzer],
    tallies: dict[str, Tally],
    options: argparse.Namespace,
    seed: int,
) -> Iterator[tuple[Fuzzer, int]]:
    """Rounds with seeds of their own, until the time is over."""
    started = dict.fromkeys(tallies, 0)

    def turn(fuzzer: Fuzzer) -> tuple[Fuzzer, int]:
        started[fuzzer.name] += 1
        return fuzzer, seed * STRIDE + started[fuzzer.name]

    if options.rounds is not None:
        for _ in range(options.rounds):
            yield from map(turn, fuzzers)
        return
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        yield turn(next_fuzzer(fuzzers, tallies))


def _show(finding: Finding) -> None:
    print(f"FOUND {finding.fuzzer}: {finding.message}")
    print(f"      at {finding.where}; see it again with: {finding.command}", flush=True)


def _table(fuzzers: Sequence[Fuzzer], tallies: dict[str, Tally]) -> None:
    table = Table("fuzzer", "what", "cases", "of them", "findings")
    for fuzzer in fuzzers:
        tally = tallies[fuzzer.name]
        outcomes = ", ".join(f"{n} {what}" for what, n in tally.outcomes.most_common())
        table.add_row(
            fuzzer.name,
            fuzzer.what,
            f"{tally.cases:,}",
            outcomes,
            str(len(tally.findings)),
        )
    total = [tallies[f.name] for f in fuzzers]
    cases_, found = (
        sum(t.cases for t in total),
        sum(len(t.findings) for t in total),
    )
    table.add_row("all", "", f"{cases_:,}", "", str(found))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _arguments(arguments)
    if options.case:
        return _again(options.case)
    chosen = options.only.split(",")
    fuzzers = [
        replace(f, examples=-(-f.examples // options.part))
        for f in FUZZERS
        if f.name in chosen
    ]
    unknown = set(chosen) - {f.name for f in fuzzers}
    if unknown:
        print(f"error: there is no fuzzer {min(unknown)!r}", file=sys.stderr)
        return 2
    seed = int(time.time()) % 100_000 if options.seed is None else options.seed
    print(f"seed {seed} (SEED={seed} makes the same rounds again)", flush=True)
    _prepare()
    tallies = {f.name: Tally() for f in fuzzers}
    try:
        work = _work(fuzzers, tallies, options, seed)
        run_rounds(work, options.jobs, tallies, _show)
    except KeyboardInterrupt:
        print("interrupted")
    _table(fuzzers, tallies)
    return 1 if any(t.findings for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
