"""
Writes constants: short constants as Python expressions, other constants into a file of
the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.values import element_type_of_dtype, onnx_element_type
from distir.errors import DistIRError
from distir.lowering.emitter import SIGNED, literal, torch_dtype
from distir.lowering.source.text import Names


def constants_file(program: str) -> str:
    """Returns the name of the file with the constants of module `program`."""
    return f"{program}.safetensors"


_LISTED_ELEMENTS = 16
"""
The largest number of elements of a constant that is listed in the source. Longer
constants go to the file, unless they are one repeated number or an arithmetic sequence.
"""


@dataclass
class WrittenConstants:
    """The constants in the file of a package, as bytes by name."""

    arrays: dict[str, npt.NDArray[Any]] = field(
        default_factory=lambda: dict[str, npt.NDArray[Any]]()
    )
    _known: dict[object, str] = field(default_factory=lambda: dict[object, str]())
    _names: Names = field(default_factory=Names)

    def expression(self, array: npt.NDArray[Any], hint: str | None) -> str:
        """
        Returns the Python expression for a constant, and adds the constant to the file
        if the expression loads it from there. Raises DistIRError for an array of
        strings.
        """
        if array.dtype.kind in "OUS":
            raise DistIRError("constant strings have no torch lowering")
        element = element_type_of_dtype(array.dtype)
        dtype = torch_dtype(onnx_element_type(element), "a constant")
        if array.dtype.kind in "biuf" and array.dtype.name != "bfloat16":
            if (computed := _computed(array, dtype)) is not None:
                return computed
            finite = bool(np.isfinite(array).all())
            if 0 < array.size <= _LISTED_ELEMENTS and finite:
                return f"torch.tensor({array.tolist()!r}, dtype={dtype})"
        name = self._name(array, hint)
        return f"CONSTANTS.tensor({name!r}, {dtype}, {tuple(array.shape)!r})"

    def _name(self, array: npt.NDArray[Any], hint: str | None) -> str:
        data = np.ascontiguousarray(array).tobytes()
        key = (array.dtype.name, array.shape, data)
        if key not in self._known:
            self._known[key] = name = self._names.fresh(hint, "constant")
            self.arrays[name] = np.frombuffer(data, dtype=np.uint8)
        return self._known[key]


def _computed(array: npt.NDArray[Any], dtype: str) -> str | None:
    """
    Returns an expression for an array of one repeated number, or for a long array of
    integers with equal steps. Returns None for other arrays.
    """
    flat, shape = array.reshape(-1), tuple(array.shape)
    if not array.size:
        return None
    if flat.tobytes() == flat[:1].tobytes() * flat.size:
        return f"torch.full({shape!r}, {literal(flat[:1])}, dtype={dtype})"
    if array.size <= _LISTED_ELEMENTS or array.dtype.kind not in "iu":
        return None
    first, step = int(flat[0]), int(flat[1]) - int(flat[0])
    end = first + step * array.size
    if step and [int(v) for v in flat] == list(range(first, end, step)):
        text = f"torch.arange({first}, {end}, {step}, dtype={dtype})"
        if dtype in SIGNED:  # PyTorch does not count in them
            text = f"torch.arange({first}, {end}, {step}).to({dtype})"
        return text if len(shape) == 1 else f"{text}.reshape({shape!r})"
    return None
