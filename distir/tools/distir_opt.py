"""`distir-opt`: xDSL's optimizer driver with DistIR's dialects and passes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.xdsl_opt_main import xDSLOptMain

from distir.errors import DistIRError
from distir.parsing import ProgramParser
from distir.tools.reporting import run_reporting_errors


class DistIROptMain(xDSLOptMain):
    """
    `distir-opt FILE -p "pass1,pass2{option=1}"`; `--pass-pipeline="builtin.module(...)"`
    is accepted too, as in MLIR. Everything else is as in `xdsl-opt`.
    """

    def register_all_frontends(self) -> None:
        """Reads `.mlir` files as `distir` does."""
        super().register_all_frontends()

        def parse(stream: IO[bytes]) -> ModuleOp:
            parser = ProgramParser(
                self.ctx, stream.read().decode(), self.get_input_name()
            )
            return parser.parse_module(not self.args.no_implicit_module)

        self.available_frontends["mlir"] = parse


def _mlir_style(arguments: Sequence[str]) -> list[str]:
    """Rewrites `--pass-pipeline=builtin.module(a,b)` to `-p a,b`."""
    out: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--pass-pipeline":
            argument = f"--pass-pipeline={next(rest, '')}"
        if argument.startswith("--pass-pipeline="):
            pipeline = argument.removeprefix("--pass-pipeline=").strip()
            if pipeline.startswith("builtin.module(") and pipeline.endswith(")"):
                pipeline = pipeline.removeprefix("builtin.module(")[:-1]
            out += ["-p", pipeline]
        else:
            out.append(argument)
    return out


def _run(arguments: Sequence[str]) -> int:
    try:
        tool = DistIROptMain("DistIR optimizer driver", _mlir_style(arguments))
        tool.run()
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        # xDSL's driver reports unknown passes, options and file extensions like this.
        raise DistIRError(str(error)) from error
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the tool; errors are one paragraph on stderr and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_reporting_errors(lambda: _run(arguments)))


if __name__ == "__main__":
    main()
