"""
Weights of a program. The IR does not hold the weights. They are in a safetensors file,
under their names in the source model.

The attribute `dist.weights` of a module names its file: a bare file name in the folder
of the `.mlir` file. A program can thus never make a tool read files from elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import WEIGHTS
from distir.errors import DistIRError
from distir.system.output_files import replaced

SUFFIX = ".safetensors"

_DTYPES = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
)


class Weights(Mapping[str, npt.NDArray[Any]]):
    """
    The tensors of a safetensors file, by name. The file is memory-mapped: each look-up
    reads the tensor from the file, and no tensor is kept.
    """

    def __init__(self, path: Path):
        # Its import registers bfloat16 with NumPy.
        import ml_dtypes  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from safetensors import SafetensorError, safe_open

        self.path = path
        if path.exists() and not path.is_file():
            raise DistIRError(
                f"{path} is not a file with data, so that it holds no weights"
            )
        try:
            self._file: Any = safe_open(path, framework="np")
        except FileNotFoundError:
            raise DistIRError(
                f"the weights file {path} does not exist; put it beside the program, "
                "or import the model again"
            ) from None
        except (SafetensorError, OSError) as error:
            raise DistIRError(
                f"{path} is not a readable safetensors file ({error}); "
                "import the model again"
            ) from error
        self._names: list[str] = list(self._file.keys())

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_weights(path: str | Path) -> Weights:
    """
    Returns the weights in a file, by name. Raises DistIRError if the file cannot be
    read.
    """
    return Weights(Path(path))


def save_weights(path: str | Path, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """
    Writes weights to a safetensors file. Raises DistIRError if the file cannot be
    written, or cannot hold the element type of a weight.
    """
    try:
        with _written(Path(path), weights):
            pass
    except OSError as error:
        raise DistIRError(f"cannot write the weights file {path}: {error}") from error


@contextmanager
def _written(path: Path, weights: Mapping[str, npt.NDArray[Any]]) -> Generator[None]:
    """
    Returns a context manager that writes weights to a temporary file. At the end of the
    context, the temporary file replaces the file `path`. Raises DistIRError if a file
    cannot be written, or cannot hold the element type of a weight.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, array in weights.items():
        array = np.asarray(array, order="C")
        if array.dtype.name not in _DTYPES:
            raise DistIRError(
                f"weight {name!r} has elements of type {array.dtype.name}, which a "
                "safetensors file written by DistIR cannot hold; cast it before "
                "importing the model"
            )
        arrays[name] = array
    with replaced(path) as partial:
        try:
            save_file(arrays, partial)
        except (SafetensorError, OSError) as error:
            raise DistIRError(
                f"cannot write the weights file {path}: {error}"
            ) from error
        yield


def weights_file(module: ModuleOp, model_path: str | Path) -> Path | None:
    """
    Returns the path of a module's weights file, in the folder of `model_path`, the file
    of the module. Returns None if the module names no weights file. Raises DistIRError
    if `dist.weights` is not a bare file name.
    """
    if WEIGHTS not in module.attributes:
        return None
    name = WEIGHTS.of(module.attributes)
    if (
        not name
        or name in (".", "..")
        or any(c in name for c in "/\\:\0")
        or Path(name).name != name
    ):
        raise DistIRError(
            f"the module's {WEIGHTS} attribute is {module.attributes[WEIGHTS]}, but it "
            "must be a bare file name in the folder of the program, such as "
            '"model.safetensors"'
        )
    return Path(model_path).parent / name


def path_beside(program: Path) -> Path:
    """
    Returns the path of the weights file for a program in the file `program`: the same
    name with the suffix `.safetensors`. Raises DistIRError if `program` itself has this
    suffix.
    """
    path = program.with_suffix(SUFFIX)
    if path == program:
        raise DistIRError(
            f"{program} is where the weights would go; give the program the suffix .mlir"
        )
    return path


def check_replaceable(weights: Path, program: Path) -> None:
    """
    Raises DistIRError if the file `weights` exists and the program in the file
    `program` does not name it as its weights file. The weights may then belong to
    another model, like the `model.safetensors` beside a Hugging Face configuration.
    """
    if not weights.exists():
        return
    named = f'{WEIGHTS} = "{weights.name}"'.encode()
    if not (program.is_file() and named in program.read_bytes()):
        raise DistIRError(
            f"{weights} holds weights already, which {program} does not name: they may be "
            f"those of another model; give the program another name or folder, or remove them"
        )


@contextmanager
def new_weights_beside(
    module: ModuleOp, program: Path, weights: Mapping[str, npt.NDArray[Any]]
) -> Generator[None]:
    """
    Returns a context manager that writes weights beside the file `program`, and makes
    the module name the weights file. The caller writes the program inside the context.
    Both files stay as they were if one of them cannot be written. If `weights` is
    empty, nothing is written. Raises DistIRError if the weights cannot be written.
    """
    if not weights:
        yield
        return
    beside = path_beside(program)
    check_replaceable(beside, program)
    with _written(beside, weights):
        module.attributes[WEIGHTS] = WEIGHTS.attr(beside.name)
        yield


@contextmanager
def attributes_kept(module: ModuleOp) -> Generator[None]:
    """
    Returns a context manager that restores the attributes of a module at the end of the
    context. The name of a weights file that is set inside the context thus only appears
    in the file that is written there.
    """
    before = dict(module.attributes)
    try:
        yield
    finally:
        module.attributes.clear()
        module.attributes.update(before)
