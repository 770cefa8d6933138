"""What a frontend hands on: the program and the weights that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, StringAttr

from distir.dialects.dist import WEIGHTS
from distir.errors import DistIRError
from distir.weights import SUFFIX, save_weights


@dataclass
class ImportedModel:
    """
    - `module`: a sequential program with the entry function `@main`.
    - `weights`: the value of every argument with the role `parameter` or `constant`, by
      `dist.name`. Weights in external-data files are mapped, not read.
    - `guessed`: the names of parameters of which only their use tells that they are.
    """

    module: ModuleOp
    weights: Mapping[str, npt.NDArray[Any]]
    guessed: Sequence[str] = ()

    def save(self, path: str | Path) -> None:
        """
        Writes the program to `path` and the weights beside it, under the same name with
        the suffix `.safetensors`, which the program then names. Raises DistIRError.
        """
        path = Path(path)
        if self.weights:
            weights_path = path.with_suffix(SUFFIX)
            if weights_path == path:
                raise DistIRError(
                    f"{path} is where the weights would go; give the program the "
                    "suffix .mlir"
                )
            save_weights(weights_path, self.weights)
            self.module.attributes[WEIGHTS] = StringAttr(weights_path.name)
        try:
            path.write_text(str(self.module) + "\n")
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error}") from error
