"""Weights files: every element type, laziness, and names that try to leave the folder."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import IntAttr, ModuleOp, StringAttr

from distir.errors import DistIRError
from distir.program.weights import (
    check_replaceable,
    load_weights,
    save_weights,
    weights_file,
)

DTYPES = [
    np.dtype(t)
    for t in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", ml_dtypes.bfloat16),
    )
]


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_round_trip(tmp_path: Path, shape: tuple[int, ...]):
    count = int(np.prod(shape))
    arrays = {
        f"h.0.{dtype}": np.arange(count).reshape(shape).astype(dtype)
        for dtype in DTYPES
    }
    save_weights(tmp_path / "w.safetensors", arrays)
    loaded = load_weights(tmp_path / "w.safetensors")
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert (loaded[name] == array).all()


def test_arrays_of_any_order(tmp_path: Path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_weights(tmp_path / "w.safetensors", {"t": array.T, "s": array[:, ::2]})
    loaded = load_weights(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(loaded["t"], array.T)
    np.testing.assert_array_equal(loaded["s"], array[:, ::2])


def test_absent_name(tmp_path: Path):
    save_weights(tmp_path / "w.safetensors", {"a": np.zeros(1)})
    weights = load_weights(tmp_path / "w.safetensors")
    assert weights.get("b") is None
    with pytest.raises(KeyError):
        weights["b"]


def test_missing_and_broken_files(tmp_path: Path):
    with pytest.raises(DistIRError, match="does not exist"):
        load_weights(tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(DistIRError, match="not a readable safetensors file"):
        load_weights(tmp_path / "broken.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(DistIRError, match="is not a file with data"):
        load_weights(tmp_path / "pipe.safetensors")


def test_unsupported_elements(tmp_path: Path):
    with pytest.raises(DistIRError, match="'names' has elements of type object"):
        save_weights(tmp_path / "w.safetensors", {"names": np.array(["a"], object)})


def test_file_of_a_module(tmp_path: Path):
    module = ModuleOp([])
    assert weights_file(module, tmp_path / "m.mlir") is None
    module.attributes["dist.weights"] = StringAttr("m.safetensors")
    assert weights_file(module, tmp_path / "m.mlir") == tmp_path / "m.safetensors"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../w", "/etc/w", "a/b", "a\\b", "c:w", "w\0", "a/../w"]
)
def test_only_bare_file_names(name: str):
    module = ModuleOp([], {"dist.weights": StringAttr(name)})
    with pytest.raises(DistIRError, match="bare file name"):
        weights_file(module, "m.mlir")


def test_attribute_of_another_kind():
    with pytest.raises(DistIRError, match="bare file name"):
        weights_file(ModuleOp([], {"dist.weights": IntAttr(1)}), "m.mlir")


def test_weights_of_another_model_are_not_replaced(tmp_path: Path):
    """Such as those beside a configuration of Hugging Face."""
    weights, program = tmp_path / "model.safetensors", tmp_path / "model.mlir"
    check_replaceable(weights, program)
    save_weights(weights, {"a": np.zeros(1)})
    with pytest.raises(DistIRError, match="may be those of another model"):
        check_replaceable(weights, program)
    module = ModuleOp([])
    program.write_text(str(module))
    with pytest.raises(DistIRError, match="may be those of another model"):
        check_replaceable(weights, program)
    module.attributes["dist.weights"] = StringAttr(weights.name)
    program.write_text(str(module))
    check_replaceable(weights, program)
