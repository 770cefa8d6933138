"""Which tensors of imported models are trained, and which not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.command_line import failure, succeed
from support.programs import names_by_role
from support.trained_steps import (
    assert_equal_steps,
    assert_steps_equal_pytorch,
    differentiated,
    exported_by_default,
    exported_by_trace,
    trained_names,
)
from torch import nn
from xdsl.context import Context

from distir.errors import DistIRError
from distir.frontends.onnx.importer import import_onnx
from distir.frontends.torch.export.exporter import EXPORTERS
from distir.frontends.torch.importer import export_onnx, import_torch
from distir.passes.distribute import DistributePass


class Odd(nn.Module):
    """A parameter, a scalar parameter, a frozen layer, buffers, and a loose tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.fixed = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fixed.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.token = nn.Parameter(torch.randn(1, 4))
        self.register_buffer("shift", torch.randn(4))
        self.loose = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * self.scale.exp() + self.shift + self.loose
        return self.fixed(y) + self.token.expand(x.shape[0], -1)


TRAINED = {"layer.weight", "layer.bias", "scale", "token"}


@pytest.fixture
def odd() -> Odd:
    torch.manual_seed(0)
    return Odd()


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_requires_a_gradient_is_trained_as_pytorch_does(odd: Odd, exporter: Any):
    imported = import_torch(odd, (X,), exporter=exporter)
    assert_steps_equal_pytorch(imported, odd, X)
    assert trained_names(imported) == TRAINED


def test_the_file_says_what_buffers_are(odd: Odd, tmp_path: Path):
    odd.fixed.requires_grad_()
    export_onnx(odd, (X,), tmp_path / "odd.onnx")
    imported = import_onnx(tmp_path / "odd.onnx")
    assert not imported.guessed
    assert_steps_equal_pytorch(imported, odd, X)
    assert trained_names(imported) == TRAINED | {"fixed.weight", "fixed.bias"}


def test_what_the_optimizer_of_the_exporter_folded_is_not_trained(
    odd: Odd, tmp_path: Path
):
    """By default the exporter expands the token: each sample would train its own."""
    path = exported_by_default(odd, (X,), tmp_path / "odd.onnx")
    imported = import_onnx(path)
    assert "token" not in imported.weights
    with pytest.raises(DistIRError, match=r"cannot train .*: .*optimize=False"):
        differentiated(imported)


def test_merged_parameters_are_not_trained(tmp_path: Path):
    """By default the exporter makes one tensor of equal ones."""
    module = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)).eval()
    path = exported_by_default(module, (X,), tmp_path / "equal.onnx")
    with pytest.raises(DistIRError, match=r"cannot train .*: .*optimize=False"):
        differentiated(import_onnx(path))


@pytest.mark.parametrize("export", [exported_by_default, exported_by_trace])
def test_folded_batch_normalisation_is_not_trained(export: Any, tmp_path: Path):
    module = nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4))
    module[1].get_buffer("running_mean").normal_()
    path = export(module, (torch.randn(2, 4, 4),), tmp_path / "folded.onnx")
    with pytest.raises(DistIRError, match=r"cannot train .*: .*optimize=False"):
        differentiated(import_onnx(path), loss="mse")


def test_a_plain_model_of_the_default_exporter_is_trained(tmp_path: Path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    path = exported_by_default(module, (X,), tmp_path / "plain.onnx")
    assert_steps_equal_pytorch(import_onnx(path), module, X)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_running_statistics_are_constants(exporter: Any, tmp_path: Path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[1].get_buffer("running_mean").normal_()
    export_onnx(module, (X,), tmp_path / "norm.onnx", exporter=exporter)
    imported = import_onnx(tmp_path / "norm.onnx")
    assert names_by_role(imported.module)["constant"] == [
        "1.running_mean",
        "1.running_var",
    ]
    assert_steps_equal_pytorch(imported, module, X)


class Straight(nn.Module):
    """Rounds what a layer gives, with the gradient of the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y + (torch.round(y) - y).detach()


class Guided(nn.Module):
    """A layer's result times itself, of which one is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            guide = 2 * y
        return y * guide


@pytest.mark.parametrize("make", [Straight, Guided])
def test_gradients_stop_where_pytorch_stops_them(make: Any):
    torch.manual_seed(0)
    module = make()
    assert_steps_equal_pytorch(import_torch(module, (X,)), module, X)


class Padded(nn.Module):
    """Rows of a table, with one that stands for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=2)
        self.table.weight.data[2] = 1.0  # not the zeros that would have no effect

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table(words))


WORDS = torch.tensor([[0, 2, 5], [2, 2, 1]])


def test_rows_of_padding_get_no_gradient():
    torch.manual_seed(0)
    module = Padded()
    assert_steps_equal_pytorch(import_torch(module, (WORDS,)), module, WORDS)


def test_the_older_exporter_loses_rows_of_padding():
    with pytest.raises(DistIRError, match=r"padding_idx.*exporter=\"dynamo\""):
        import_torch(Padded(), (WORDS,), exporter="torchscript", training=True)


class Adapted(nn.Module):
    """A frozen layer with an adapter, and one whose result is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.guide = nn.Linear(4, 4), nn.Linear(4, 4)
        self.adapter = nn.Linear(4, 4, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x) + self.guide(x).detach()


@pytest.mark.parametrize(
    "options",
    [{}, {"d": 2, "zero": 3}, {"d": 2, "t": 2, "checkpoint": "full"}],
    ids=["sequential", "zero3", "checkpoint"],
)
def test_layers_that_are_frozen_in_part(options: dict[str, Any]):
    """As one function that is called: what has no gradient is not an update of zeros."""
    torch.manual_seed(0)
    module = nn.Sequential(*(Adapted() for _ in range(3))).eval()
    x, labels = torch.randn(4, 4), torch.randn(4, 4)
    imported = differentiated(import_torch(module, (x,)))
    assert "func.call" in str(imported.module)
    assert trained_names(imported) == {f"{i}.adapter.weight" for i in range(3)}
    if options:
        DistributePass(**options).apply(Context(), imported.module)
    assert_equal_steps(
        imported,
        module,
        {"input": x.numpy(), "labels": labels.numpy()},
        lambda module: nn.functional.mse_loss(module(x), labels),
    )


def test_gradients_stop_where_the_file_says_so(tmp_path: Path):
    torch.manual_seed(0)
    module = Straight()
    export_onnx(module, (X,), tmp_path / "straight.onnx")
    imported = import_onnx(tmp_path / "straight.onnx")
    assert "dist.stop_gradient" in str(imported.module)
    assert_steps_equal_pytorch(imported, module, X)


def test_a_lost_detach_is_not_differentiated(tmp_path: Path):
    path = exported_by_default(Straight(), (X,), tmp_path / "straight.onnx")
    with pytest.raises(DistIRError, match=r"removed a detach.*optimize=False"):
        differentiated(import_onnx(path))


@pytest.mark.parametrize("make", [Straight, Guided])
def test_the_older_exporter_does_not_train_what_stops_gradients(make: Any):
    with pytest.warns(UserWarning, match="stops gradients"):
        import_torch(make(), (X,), exporter="torchscript")
    with pytest.raises(DistIRError, match='import it with exporter="dynamo"'):
        import_torch(make(), (X,), exporter="torchscript", training=True)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Signs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sign.apply(self.layer(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_backward_that_is_lost_is_warned_about(exporter: Any):
    with pytest.warns(UserWarning) as caught:
        import_torch(Signs(), (X,), exporter=exporter)
    [message] = {str(warning.message) for warning in caught}
    assert "Sign, with a backward of its own" in message


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def test_patterns_decide():
    def trained(frozen: Sequence[str], trainable: Sequence[str] = ()) -> set[str]:
        imported = import_torch(Layers(), (X,), frozen=frozen, trainable=trainable)
        differentiated(imported)
        return trained_names(imported)

    assert trained(["a.*"]) == {"b.weight", "b.bias"}
    assert trained(["*"], ["*.bias"]) == {"a.bias", "b.bias"}
    with pytest.raises(DistIRError, match=r"no weight of the model matches .*'c'"):
        import_torch(Layers(), (X,), frozen=["c"])


def test_a_trainable_pattern_thaws_a_frozen_parameter():
    module = Layers()
    module.requires_grad_(False)
    imported = import_torch(module, (X,), trainable=["b.*"])
    differentiated(imported)
    assert trained_names(imported) == {"b.weight", "b.bias"}


def test_nothing_to_train():
    module = Layers()
    module.requires_grad_(False)
    with pytest.raises(DistIRError, match=r"dist\.frozen.*nothing to train"):
        differentiated(import_torch(module, (X,)))


def plain_model(rank: int) -> ModelProto:
    """`x @ w + b` of no exporter that says what tensors are; b has leading 1s."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 4)).astype(np.float32)
    bias = random.standard_normal((1,) * (rank - 1) + (4,)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["y"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph)


class TestFilesThatSayNothing:
    def test_weights_of_operators_are_trained(self):
        imported = import_onnx(plain_model(1))
        assert imported.guessed == ["w", "b"]
        differentiated(imported)
        assert trained_names(imported) == {"w", "b"}

    def test_what_could_be_a_table_is_asked_for(self):
        with pytest.raises(DistIRError, match=r"cannot train b: .*--trainable"):
            differentiated(import_onnx(plain_model(2)))
        trained = differentiated(import_onnx(plain_model(2), trainable=["b"]))
        assert trained_names(trained) == {"w", "b"}
        trained = differentiated(import_onnx(plain_model(2), frozen=["b"]))
        assert trained_names(trained) == {"w"}

    def test_on_the_command_line(self, tmp_path: Path):
        onnx.save(plain_model(2), tmp_path / "plain.onnx")
        command = ("import", tmp_path / "plain.onnx", "-o", tmp_path / "step.mlir")
        training = ("--training", "--loss", "mse")
        assert "cannot train b: " in failure(*command, *training)
        done = succeed(*command, *training, "--frozen", "b")
        assert done.output == (
            "trained: 1 parameters of 16 elements; not trained: 1 frozen, 0 that the "
            "loss does not depend on, 0 constants\n"
        )
        assert "note: the file does not say what its tensors are" in done.errors
        assert "1 are trained because operators use them as weights (w)" in done.errors
        assert "matches" in failure(*command, *training, "--trainable", "c*")
        assert "--frozen is of use with --training" in failure(
            *command, "--frozen", "b"
        )


def test_an_import_without_training_keeps_the_doubt(tmp_path: Path):
    onnx.save(plain_model(2), tmp_path / "plain.onnx")
    succeed("import", tmp_path / "plain.onnx", "-o", tmp_path / "plain.mlir")
    assert "dist.doubt" in (tmp_path / "plain.mlir").read_text()
