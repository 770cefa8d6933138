"""
The result of PyTorch's exporters: an ONNX model whose large tensors are stored
separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, save_model

from distir.errors import DistIRError
from distir.system.output_files import replaced_files

if TYPE_CHECKING:
    from distir.frontends.torch.export.opaque import OpaquePart

Value = npt.NDArray[Any]

_LARGEST_MESSAGE = 1 << 30
"""
The largest size of tensors, in bytes, that are stored in the file of a model itself.
Protobuf's limit is twice as large.
"""


@dataclass
class ExportedModule:
    """
    A PyTorch module that was exported as an ONNX model.

    - `model`: the program. It contains the tensors in `values` without their data.
    - `values`: the large tensors by name, in the memory of the exported module. An entry
      is None if the tensor has no value, because the module is on the meta device or
      fake.
    - `is_traced`: whether PyTorch's older exporter wrote the model, by recording a run
      of the module.
    - `accepted`: the names of the differences from the module that the user accepts
      (`trust.ACCEPTED`).
    - `output`: the structure of the module's outputs (see `ImportedModel`).
    - `opaque`: the parts that were not traced, with their calls on the example inputs.
    """

    model: ModelProto
    values: Mapping[str, Value | None] = field(default_factory=dict[str, Value | None])
    is_traced: bool = False
    accepted: set[str] = field(default_factory=set[str])
    output: str = ""
    opaque: Sequence[OpaquePart] = ()

    def save(self, path: str | Path) -> None:
        """
        Writes an ONNX file with all tensors. Large tensors go to a file beside it.
        Raises DistIRError if a tensor has no value.
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
