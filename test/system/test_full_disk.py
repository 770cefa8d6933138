"""What was in a file stays where a disk is full, whoever writes: commands and functions."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command_line import distir, failure, succeed, write_program
from torch.distributed.checkpoint.state_dict_saver import save

import distir as library
from distir.errors import DistIRError
from distir.facade.run import RunResult
from distir.frontends.torch.importer import export_onnx
from distir.program.weights import save_weights
from distir.runtime import tensors
from distir.system.output_files import replaced_files, write_text
from distir.tools.distir_opt import main as optimize
from distir.tools.files import write_arrays

CLUSTER = ("--cluster", "cpu")
SIZES = ("--layers", "2", "--d-model", "8", "--batch", "4")
SEARCH = ("search", "model.mlir", *CLUSTER, "--world-size", "2", "--degrees", "2,1,1")


@contextmanager
def small_files(size: int = 60) -> Generator[None]:
    """Lets no file grow beyond so many bytes, like a disk with little space."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def contents(folder: Path) -> dict[str, bytes]:
    """The files in a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, a checkpoint and weights."""
    folder = tmp_path_factory.mktemp("given")
    model = write_program(folder / "model.mlir")
    succeed("distribute", model, *CLUSTER, "-d", "2", "-o", folder / "dist.mlir")
    (folder / "s.py").write_text("def schedule(s):\n    s['l1'].stage()\n")
    linear = torch.nn.Sequential(torch.nn.Linear(16, 16))
    save(linear.state_dict(), checkpoint_id=folder / "dcp", no_dist=True)
    library.import_model(linear, (torch.ones(4, 16),)).save(folder / "linear.mlir")
    return folder


COMMANDS: dict[str, tuple[str, ...]] = {
    "build": ("build", "mlp", *SIZES, "-o", "OUT/a.mlir"),
    "distribute": ("distribute", "dist.mlir", "-o", "OUT/a.mlir"),
    "with weights": ("distribute", "linear.mlir", *CLUSTER, "-d2", "-o", "OUT/a.mlir"),
    "schedule": ("schedule", "model.mlir", "s.py", "-o", "OUT/a.mlir"),
    "cluster": ("cluster", "--kind", "A100", "-o", "OUT/a.mlir"),
    "simulate json": ("simulate", "dist.mlir", "--json", "OUT/a.json"),
    "simulate trace": ("simulate", "dist.mlir", "--trace", "OUT/a.json"),
    "simulate html": ("simulate", "dist.mlir", "--html", "OUT/a.html"),
    "search json": (*SEARCH, "--json", "OUT/a.json"),
    "search plot": (*SEARCH, "--plot", "OUT/a.svg"),
    "search plan": (*SEARCH, "--save-plan", "OUT/a.json"),
    "search program": (*SEARCH, "-o", "OUT/a.mlir"),
    "lower": ("lower", "dist.mlir", "-o", "OUT/a"),
    "export weights": ("export", "dcp", "-o", "OUT/a.safetensors"),
    "export plan": ("export", "dist.mlir", "--to", "dtensor", "-o", "OUT/a.py"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(
    name: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(given)
    command = [part.replace("OUT", str(tmp_path)) for part in COMMANDS[name]]
    if name == "distribute":
        command[1:2] = ["model.mlir", *CLUSTER, "-d", "2"]
    succeed(*command)
    before = contents(tmp_path)
    assert before
    with small_files():
        assert "File too large" in failure(*command)
    assert contents(tmp_path) == before


def test_an_input_that_is_wrong_leaves_what_distir_opt_is_to_write(
    given: Path, tmp_path: Path
) -> None:
    out, wrong = tmp_path / "a.mlir", tmp_path / "wrong.mlir"
    wrong.write_text("func.func @main() {")
    distir(given / "model.mlir", "-o", out, command=optimize)
    before = contents(tmp_path)
    assert len(before) == 2
    assert distir(wrong, "-o", out, command=optimize).code == 1
    with small_files():
        told = distir(given / "model.mlir", "-o", out, command=optimize)
    assert "File too large" in told.errors and told.code == 1
    assert contents(tmp_path) == before


def written_by_functions(given: Path) -> dict[str, Callable[[Path], object]]:
    """Functions that write, by the names of what they write."""
    array = np.ones(400, np.float32)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16))
    program = library.import_model(model, (torch.ones(4, 16),))
    run = RunResult(program.module, {"x": array})
    dist = library.distribute(program, cluster="cpu", d=2)
    lowered = library.lower(dist, given / "lowered")
    simulation = library.simulate(dist)
    named = {"x": torch.from_numpy(array)}
    return {
        "program.mlir": program.save,
        "dist.mlir": dist.save,
        "package": lowered.save,
        "model.onnx": lambda path: export_onnx(model, (torch.ones(4, 16),), path),
        "outputs.npz": run.save,
        "differences.json": library.check(program, dist).save,
        "plan.json": library.search(program, cluster="cpu").save,
        "simulation.json": simulation.save,
        "trace.json": simulation.save_trace,
        "arrays.npz": lambda path: write_arrays(path, {"x": array}),
        "weights.safetensors": lambda path: save_weights(path, {"x": array}),
        "tensors.safetensors": lambda path: tensors.save(path, named),
        "tensors.pt": lambda path: tensors.save(path, named),
    }


def test_functions(given: Path, tmp_path: Path) -> None:
    for name, write in written_by_functions(given).items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        write(folder / name)
        before = contents(folder)
        assert before, name
        with (
            small_files(),
            pytest.raises(
                (DistIRError, OSError, tensors.FileError), match="File too large"
            ),
        ):
            write(folder / name)
        assert contents(folder) == before, name


def test_files_are_moved_to_a_folder_when_all_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "made/package"
    for text in ("old", "new"):
        with replaced_files(folder) as made:
            (made / "sub").mkdir()
            write_text(made / "sub/a.txt", text)
            write_text(made / "b.txt", text)
        assert contents(tmp_path) == {
            "made/package/sub/a.txt": text.encode(),
            "made/package/b.txt": text.encode(),
        }
        assert (
            folder.stat().st_mode & 0o777 == (tmp_path / "made").stat().st_mode & 0o777
        )
    write_text(folder / "own.txt", "own")
    with pytest.raises(KeyboardInterrupt), replaced_files(folder) as made:
        write_text(made / "b.txt", "newer")
        raise KeyboardInterrupt
    assert contents(folder) == {"sub/a.txt": b"new", "b.txt": b"new", "own.txt": b"own"}
