"""`distir-opt`: xDSL's optimizer driver with DistIR's dialects and passes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.xdsl_opt_main import xDSLOptMain

from distir.errors import DistIRError, did_you_mean
from distir.passes import get_all_passes
from distir.planning.annotations import read_notes
from distir.system.garbage import collect_rarely_until_exit
from distir.system.output_files import write_text
from distir.system.plugins import installed_universe
from distir.text import ProgramParser, ProgramTarget
from distir.tools.files import refuse_other_files, text_of
from distir.tools.reports.reporting import note, run_reporting_errors


class _Kept(StringIO):
    """A text buffer whose contents can still be read after it is closed."""

    def close(self) -> None:
        """Does nothing, so that the contents stay readable."""


class DistIROptMain(xDSLOptMain):
    """
    The driver of `distir-opt FILE -p "pass1,pass2{option=1}"`.
    `--pass-pipeline="builtin.module(...)"` works too, as in MLIR. The other options are
    those of `xdsl-opt`.
    """

    def prepare_output(self) -> IO[str]:
        """
        Returns the stream for the output: stdout, or a buffer that `run` writes to the
        file.
        """
        if self.args.output_file is None:
            return sys.stdout
        self._written = _Kept()
        return self._written

    def run(self) -> None:
        """
        Runs the passes and prints the result. An output file is replaced only after the
        whole result has been written.
        """
        super().run()
        if self.args.output_file is not None:
            write_text(self.args.output_file, self._written.getvalue())

    def register_all_dialects(self) -> None:
        for name, load in installed_universe().all_dialects.items():
            self.ctx.register_dialect(name, load)

    def register_all_passes(self) -> None:
        for name, load in installed_universe().all_passes.items():
            self.register_pass(name, load)

    def register_all_targets(self) -> None:
        self.available_targets |= installed_universe().all_targets
        self.available_targets["mlir"] = lambda: ProgramTarget

    def register_all_frontends(self) -> None:
        """Registers the parser of `.mlir` files that `distir` uses."""
        super().register_all_frontends()

        def parse(stream: IO[bytes]) -> ModuleOp:
            name = self.get_input_name()
            text = text_of(stream.read(), Path(name))
            parser = ProgramParser(self.ctx, text, name)
            return parser.parse_module(not self.args.no_implicit_module)

        self.available_frontends["mlir"] = parse

    def apply_passes(self, prog: ModuleOp) -> None:
        """
        Runs the passes, and prints on stderr the notes that they leave for the user.
        """
        known = read_notes(prog)
        super().apply_passes(prog)
        for text in read_notes(prog):
            if text not in known:
                note(text)


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
        if tool.args.input_file is not None:
            refuse_other_files(Path(tool.args.input_file))
        tool.run()
    except ValueError as error:
        # xDSL's driver reports unknown passes, options and file extensions like this.
        raise DistIRError(f"{error}{_meant(str(error))}") from error
    return 0


def _meant(message: str) -> str:
    """
    Returns a suggestion of a similar name, to add to xDSL's message about an unknown
    pass. Returns an empty string for other messages.
    """
    _, unknown, names = message.partition("Unrecognized passes: ")
    if not unknown:
        return ""
    meant = did_you_mean(names.split("'")[1], get_all_passes()).rstrip()
    return f"; {meant or '`distir-opt --help` lists them'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Runs `distir-opt` and exits. An error is printed on stderr as one paragraph, and the
    exit code is then 1. Without `arguments`, runs with the arguments of this process,
    which then ends.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        collect_rarely_until_exit()
    sys.exit(run_reporting_errors(lambda: _run(arguments)))


if __name__ == "__main__":
    main()
