"""`distir-gui`: xDSL's interactive app with DistIR's dialects and passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from xdsl.passes import PassPipeline

from distir.errors import DistIRError
from distir.system.plugins import installed_universe
from distir.tools.files import text_of
from distir.tools.reports.reporting import run_reporting_errors


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="distir-gui", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="the program to open")
    parser.add_argument("-p", "--passes", default="", help="the passes to begin with")
    given = parser.parse_args(arguments)
    missing = [name for name in ("textual", "pyclip") if find_spec(name) is None]
    if missing:
        raise DistIRError(
            f"xDSL's interactive app needs the package {' and '.join(missing)}; run "
            f"pip install 'distir[viz]'"
        )
    # Few users have the packages that this needs.
    from xdsl.interactive.app import InputApp

    known = installed_universe()
    text = None if given.file is None else text_of(given.file.read_bytes(), given.file)
    passes = PassPipeline.parse_spec(known.all_passes, given.passes).passes
    app = InputApp(
        tuple(known.all_dialects.items()),
        tuple((name, load()) for name, load in sorted(known.all_passes.items())),
        None if given.file is None else str(given.file),
        text,
        passes,
    )
    app.run()
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Runs `distir-gui` and exits. An error is printed on stderr as one paragraph, and the
    exit code is then 1.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_reporting_errors(lambda: _run(arguments)))


if __name__ == "__main__":
    main()
