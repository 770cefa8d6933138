"""The result of PyTorch's exporters: an ONNX model, with its tensors apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, save_model

from distir.errors import DistIRError
from distir.system.output_files import replaced_files

Value = npt.NDArray[Any]

_LARGEST_MESSAGE = 1 << 30
"""
The most bytes of tensors that go into the file of a model itself; protobuf's limit is twice
that.
"""


@dataclass
class ExportedModule:
    """
    An exported module.

    - `model`: the program. It contains the tensors that are in `values` without their data.
    - `values`: the large tensors by name, in the memory of the module that was exported;
      None for one that has no value, because the module is on the meta device or fake.
    - `is_traced`: PyTorch's older exporter wrote it, as what the module did for the inputs.
    - `accepted`: the losses of the program that the user accepts (`trust.ACCEPTED`).
    """

    model: ModelProto
    values: Mapping[str, Value | None] = field(default_factory=dict[str, Value | None])
    is_traced: bool = False
    accepted: set[str] = field(default_factory=set[str])

    def save(self, path: str | Path) -> None:
        """
        Writes an ONNX file with all tensors; large ones go to a file beside it. Raises
        DistIRError for tensors without values.
        """
        missing = next((n for n, value in self.values.items() if value is None), None)
        if missing is not None:
            raise DistIRError(
                f"tensor {missing!r} has no value (it is on the meta device, or fake) that an ONNX "
                f"file could hold; import the module with import_torch instead"
            )
        whole = ModelProto()
        whole.CopyFrom(self.model)
        size = 0
        for tensor in whole.graph.initializer:
            value = self.values.get(tensor.name)
            if value is not None:
                tensor.ClearField("external_data")
                tensor.data_location = TensorProto.DEFAULT
                tensor.raw_data = np.ascontiguousarray(value).tobytes()
                size += value.nbytes
        path = Path(path)
        with replaced_files(path.parent) as made:
            save_model(
                whole,
                made / path.name,
                save_as_external_data=size > _LARGEST_MESSAGE,
                location=f"{path.name}.data",
            )
