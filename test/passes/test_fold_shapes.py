"""`fold-shapes` on exported models: nothing dynamic is left, and the results stay."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import EXPORTS, model, onnx_file
from xdsl.context import Context

from distir.dialects.onnx import operator
from distir.frontends.onnx.importer import import_onnx
from distir.frontends.torch.export.exporter import Exporter
from distir.interpreters.reference import run_program
from distir.interpreters.types import is_static
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import argument_names, entry_function, walk_functions


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_exported_models(name: str, exporter: Exporter) -> None:
    case = model(name)
    imported = import_onnx(onnx_file(name, exporter))
    module = imported.module
    FoldShapesPass().apply(Context(), module)
    module.verify()
    ops = [op for _, op in walk_functions(module)]
    assert all(is_static(result.type) for op in ops for result in op.results)
    names = {op.name for op in ops}
    assert not names & {"onnx.Shape", "onnx.Size", "onnx.ConstantOfShape", "onnx.Range"}
    # What Gathers are left look up embeddings or positions, not sizes.
    for op in ops:
        if op.name in ("onnx.Gather", "onnx.Concat"):
            owners = [value.owner for value in op.operands]
            assert not all(isinstance(o, operator("Constant")) for o in owners)

    values = {**imported.weights, **case.numpy_inputs}
    arguments = [np.asarray(values[n]) for n in argument_names(entry_function(module))]
    results = run_program(module, arguments)
    for result, expected in zip(results, case.numpy_outputs.values(), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
