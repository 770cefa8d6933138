"""Runs generated programs in this process: what the lowering writes, without ranks."""

from __future__ import annotations

import sys
import tempfile
import types
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Region

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.train_ops.optimizers import UpdateOp
from distir.lowering.helper_modules import imported_as
from distir.lowering.program_source import ProgramSource, program_source
from distir.lowering.source.constants import constants_file
from distir.program import entry_function
from distir.program.weights import save_weights
from support.sharding_harness import Sequential

# Element types that NumPy does not share with PyTorch, and the integers they travel as.
_VIEWS: dict[Any, tuple[Any, torch.dtype]] = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (np.uint8, torch.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (np.uint8, torch.float8_e5m2fnuz),
    np.dtype(ml_dtypes.float8_e8m0fnu): (np.uint8, torch.float8_e8m0fnu),
}
# Element types of less than a byte, which are held one per element of a wider type.
_HELD: dict[Any, Any] = {
    np.dtype(ml_dtypes.int4): np.int8,
    np.dtype(ml_dtypes.uint4): np.uint8,
    np.dtype(ml_dtypes.int2): np.int8,
    np.dtype(ml_dtypes.uint2): np.uint8,
    np.dtype(ml_dtypes.float4_e2m1fn): np.float32,
}
_BACK = {t: (i, n) for n, (i, t) in _VIEWS.items()}
_CARRIERS = {np.int16: torch.int16, np.uint8: torch.uint8}


def to_torch(value: Any) -> Any:
    """Returns the torch counterpart of an array, of a list of arrays, or of None."""
    if value is None:
        return None
    if isinstance(value, list):
        return [to_torch(v) for v in value]
    array = np.array(value, order="C")
    if array.dtype in _HELD:
        array = array.astype(_HELD[array.dtype])
    if array.dtype in _VIEWS:
        carrier, dtype = _VIEWS[array.dtype]
        flat = torch.from_numpy(array.reshape(-1).view(carrier))
        return flat.view(dtype).reshape(array.shape)
    return torch.from_numpy(array)


def to_numpy(value: Any) -> Any:
    """Returns the inverse of `to_torch`."""
    if isinstance(value, list):
        return [to_numpy(v) for v in value]
    if value is None or not isinstance(value, torch.Tensor):
        return value
    value = value.cpu()
    if value.dtype in _BACK:
        carrier, dtype = _BACK[value.dtype]
        flat = value.contiguous().reshape(-1).view(_CARRIERS[carrier])
        return flat.numpy().view(dtype).reshape(value.shape)
    return value.numpy()


def load_program(source: ProgramSource) -> types.ModuleType:
    """Imports the module `program.py` of a source, with the helper modules."""
    package = "distir.runtime"
    for helper in source.helpers:  # where they are in a package: beside the program
        helper_module = import_module(imported_as(helper))
        sys.modules.setdefault(f"{package}.{helper}", helper_module)
    folder = tempfile.TemporaryDirectory()
    save_weights(Path(folder.name) / constants_file(source.name), source.constants)
    tables = _executed(f"{package}.tables", source.tables)
    sys.modules[tables.__name__] = tables
    try:
        # The folder is there as long as the module is.
        place = {"__file__": f"{folder.name}/program.py", "folder": folder}
        return _executed(f"{package}.program", source.text, **place)
    finally:
        del sys.modules[tables.__name__]


def _executed(name: str, text: str, **given: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    module.__dict__.update(given)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def program_of(plain: Sequential) -> ModuleOp:
    """Returns the program whose only op is that of a case; it takes over the op's block."""
    block = plain.op.parent_block()
    assert block is not None
    block.add_op(ReturnOp(*plain.op.results))
    types = FunctionType.from_lists(
        [a.type for a in block.args], [r.type for r in plain.op.results]
    )
    return ModuleOp([FuncOp("main", types, Region(block))])


def run_here(module: ModuleOp, values: Sequence[Any], device: str = "cpu") -> list[Any]:
    """Runs a program of one process in this process, on a device."""
    settings = _settings(module)
    program = load_program(program_source(module))
    (rank,) = program.RANKS
    with torch.device(device):
        body = rank.program({}, rank.numbers)
    with torch.inference_mode():
        results = body.main(
            *(
                float(v) if i in settings else _on(to_torch(v), device)
                for i, v in enumerate(values)
            )
        )
    if not isinstance(results, tuple):
        results = (results,)
    types = entry_function(module).function_type.outputs
    return [_narrowed(to_numpy(r), t) for r, t in zip(results, types, strict=True)]


def _settings(module: ModuleOp) -> set[int]:
    """The arguments that are settings of updates, which the training loop gives as numbers."""
    return {
        value.index
        for op in module.walk()
        if isinstance(op, UpdateOp)
        for value in op.step_settings
        if isinstance(value, BlockArgument)
    }


def _on(value: Any, device: str) -> Any:
    """A tensor, or a list of tensors, on a device."""
    if isinstance(value, list):
        return [_on(v, device) for v in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _narrowed(value: Any, type_: Attribute) -> Any:
    """Returns the array in the element type that the program gives it."""
    element = getattr(type_, "element_type", None)
    if not isinstance(value, np.ndarray) or element is None:
        return value
    dtype = numpy_dtype(element)
    return value.astype(dtype) if dtype in _HELD else value
