"""PyTorch modules through both exporters: names, scopes, weights and results."""

import functools
import re

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from support.models import EXPORTERS, EXPORTS, model, onnx_file
from support.programs import names_by_role, ops_of, round_trip

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.onnx.importer import import_onnx
from distir.frontends.torch.export.exporter import Exporter
from distir.frontends.torch.importer import export_onnx, import_torch
from distir.frontends.torch.modules.inputs import leaf_names
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function, result_names, scope_of

CASES = pytest.mark.parametrize(("name", "exporter"), EXPORTS)


@functools.cache
def as_imported(name: str, exporter: Exporter) -> ImportedModel:
    """The program of a model's file, which no test changes."""
    return import_onnx(onnx_file(name, exporter))


@CASES
def test_structure(name: str, exporter):
    case = model(name)
    imported = as_imported(name, exporter)
    round_trip(imported.module)
    main = entry_function(imported.module)
    names = names_by_role(imported.module)
    assert names["input"] == list(case.inputs)
    assert result_names(main) == list(case.outputs)
    assert not ops_of(imported.module, "CastLike", "SplitToSequence", "SequenceAt")
    # Gradients stop at rows of padding.
    stops = ops_of(imported.module, "Identity")
    assert all("dist.stop_gradient" in op.attributes for op in stops)


@CASES
def test_every_parameter_keeps_its_name_and_value(name: str, exporter):
    case = model(name)
    imported = as_imported(name, exporter)
    names = names_by_role(imported.module)["parameter"]
    # Tied parameters have several names, of which the export keeps one.
    assert set(names) <= set(case.module.state_dict())
    kept = {id(p) for n, p in _parameters(case.module) if n in names}
    assert kept == {id(p) for _, p in _parameters(case.module)}
    for parameter, value in case.module.state_dict().items():
        if parameter in imported.weights:
            np.testing.assert_array_equal(imported.weights[parameter], value.numpy())


def _parameters(module: torch.nn.Module):
    return list(module.named_parameters(remove_duplicate=False))


@CASES
def test_scopes_are_modules(name: str, exporter):
    case = model(name)
    imported = as_imported(name, exporter)
    modules = {n for n, _ in case.module.named_modules()}
    scopes = {scope_of(op) for op in ops_of(imported.module)}
    assert scopes <= modules, scopes - modules
    linear = {
        scope_of(op)
        for op in ops_of(imported.module, "MatMul", "Gemm")
        if any(
            v.name_hint in names_by_role(imported.module)["parameter"]
            for v in op.operands
        )
    }
    for scope in linear:
        assert "weight" in dict(case.module.get_submodule(scope).named_parameters())


@CASES
def test_equal_to_pytorch(name: str, exporter):
    case = model(name)
    imported = as_imported(name, exporter)
    arguments = [
        case.numpy_inputs[n] if n in case.inputs else imported.weights[n]
        for n in argument_names(entry_function(imported.module))
    ]
    outputs = run_program(imported.module, arguments)
    for output, expected in zip(outputs, case.numpy_outputs.values(), strict=True):
        np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_import_torch(exporter):
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
    )
    imported = import_torch(module, (torch.randn(2, 4),), exporter=exporter)
    round_trip(imported.module)
    names = names_by_role(imported.module)
    assert names["input"] == ["input"]
    assert set(names["parameter"]) == {n for n, _ in module.named_parameters()}
    assert set(names["constant"]) == {"1.running_mean", "1.running_var"}
    assert not ops_of(imported.module, "Dropout")
    assert all(part.training for part in module.modules())
    assert "forward" not in module.__dict__


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_equal_parameters_stay_apart(exporter):
    module = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))
    imported = import_torch(module, (torch.randn(2, 4),), exporter=exporter)
    assert set(names_by_role(imported.module)["parameter"]) == set(module.state_dict())


def test_the_module_keeps_its_modes():
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    module[0].eval()
    import_torch(module, (torch.randn(2, 2),), exporter="torchscript")
    assert [m.training for m in module.modules()] == [True, False, True]


def test_unknown_exporter(tmp_path):
    with pytest.raises(DistIRError, match="no exporter 'jax'; choose one of dynamo"):
        export_onnx(torch.nn.Linear(2, 2), (), tmp_path / "m.onnx", exporter="jax")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_module_that_cannot_run(exporter):
    with pytest.raises(DistIRError, match=re.escape("cannot export Linear: ")):
        import_torch(torch.nn.Linear(2, 2), (torch.randn(3, 3),), exporter=exporter)


class _Branch(torch.nn.Module):
    """What it computes depends on values, which the newer exporter does not know."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else x


def test_the_other_exporter_is_tried():
    module, x = torch.nn.Sequential(torch.nn.ReLU(), _Branch()), torch.ones(2, 2)
    with pytest.raises(DistIRError, match=re.escape("in its part '1' (_Branch): ")):
        import_torch(module, (x,), exporter="dynamo")
    with pytest.warns(UserWarning, match="older exporter wrote Sequential") as told:
        imported = import_torch(module, (x,), allow=("control-flow",))
    assert "in its part '1' (_Branch): " in str(told[-1].message)
    assert __file__ in {warning.filename for warning in told}
    names = argument_names(entry_function(imported.module))
    arguments = [x.numpy() if n == "input" else imported.weights[n] for n in names]
    np.testing.assert_allclose(
        run_program(imported.module, arguments)[0], module(x).detach(), rtol=1e-6
    )


class _WritesThroughAView(_Branch):
    """The older exporter loses what is written into its result through strides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) * 1
        y.as_strided((2,), (2,)).add_(1)
        return y


def test_what_the_older_exporter_wrote_is_compared(capfd: pytest.CaptureFixture[str]):
    module, x = _WritesThroughAView(), torch.ones(2, 2)
    wrong = r"computes something else on the example inputs: result 0 differs by 1 "
    allow = ("control-flow",)
    with pytest.warns(UserWarning, match="older exporter wrote"):
        with pytest.raises(DistIRError, match=wrong):
            import_torch(module, (x,), allow=allow)
        with pytest.raises(DistIRError, match=wrong):
            import_torch(module.train(), (x,), training=True, allow=allow)
    assert module.training
    assert "def forward" not in capfd.readouterr().err
    allow = ("control-flow", "mismatch")
    with pytest.warns(UserWarning, match=wrong) as told:
        import_torch(module, (x,), exporter="torchscript", allow=allow)
    assert __file__ in {warning.filename for warning in told}


def test_neither_exporter_can():
    with pytest.raises(DistIRError, match=r"^neither .* can export Linear: "):
        import_torch(torch.nn.Linear(2, 2), (torch.randn(3, 3),))


def test_leaf_names():
    assert leaf_names(0, "output") == ["output"]
    assert leaf_names((0, 1), "output") == ["output0", "output1"]
    assert leaf_names({"logits": 0, "hidden": (1, 2)}, "output") == [
        *("logits", "hidden.0", "hidden.1")
    ]


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_cache_in_the_result_is_named(exporter):
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    inputs = {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}
    with pytest.raises(DistIRError, match=r"cache of keys .*use_cache=False"):
        import_torch(module, (), inputs, exporter=exporter)


class GroupedProduct(torch.nn.Module):
    """A grouped product of its own, outside of a module of experts of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 8, 8).bfloat16())

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, self.weight, offs=ends)


def test_grouped_products_have_no_onnx_function():
    inputs = torch.randn(4, 8).bfloat16(), torch.tensor([1, 4], dtype=torch.int32)
    with pytest.raises(DistIRError, match="grouped_mm, which has no ONNX function"):
        import_torch(GroupedProduct(), inputs, exporter="dynamo")


class Parts(torch.nn.Module):
    """Parts of a tensor that are not equally large."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = torch.split(x, [3, 5], dim=-1)
        return torch.cat([second, first], -1), *x.split(3, 0), *x.tensor_split(3, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_unequal_parts(dtype: torch.dtype):
    x = torch.arange(32.0).reshape(4, 8).to(dtype)
    program = import_torch(Parts(), (x,), exporter="dynamo").module
    assert not ops_of(program, "SplitToSequence", "SequenceAt")
    (given,) = (
        [x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)]
        if (dtype == torch.bfloat16)
        else [x.numpy()]
    )
    found = run_program(program, [given])
    for ours, theirs in zip(found, Parts()(x), strict=True):
        np.testing.assert_array_equal(ours.astype(np.float32), theirs.float().numpy())
