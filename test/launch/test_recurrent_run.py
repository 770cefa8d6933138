"""Recurrent layers and state spaces in parts on real processes: PyTorch's training step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.recurrent_programs import Layer
from support.training_programs import assert_descended, distributed, on_processes
from torch import Tensor, nn
from xdsl.context import Context
from xdsl.ir import Operation

from distir.dialects.dist import layout_of
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.frontends.torch.importer import import_torch
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.program.weights import save_weights

WORDS = 32


class Bidirectional(nn.Module):
    """Words, a recurrent layer in both directions, and a label for each word."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layer = kind(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids))[0])


class Stacked(nn.Module):
    """Words, recurrent layers of one direction, and a label for each word."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layer = kind(8, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids))[0])


class Mamba(nn.Module):
    """A Mamba of one layer, of which the logits alone are returned."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.MambaConfig(
            vocab_size=WORDS,
            hidden_size=8,
            state_size=4,
            num_hidden_layers=1,
            time_step_rank=2,
            tie_word_embeddings=False,
            use_cache=False,
        )
        self.model = transformers.MambaForCausalLM(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids).logits


def is_split(op: Operation) -> bool:
    """Whether an op's first result is split over t."""
    layout = layout_of(op.results[0])
    return layout is not None and any(s.axis == "t" for d in layout.dims for s in d)


@pytest.mark.parametrize(
    ("make", "op"),
    [
        pytest.param(lambda: Bidirectional(nn.LSTM), "onnx.LSTM", id="lstm"),
        pytest.param(
            lambda: Bidirectional(nn.GRU),
            "onnx.GRU",
            id="gru",
            marks=pytest.mark.slow,
        ),
        pytest.param(Mamba, "train.selective_scan", id="mamba"),
    ],
)
def test_a_step_on_two_processes(
    make: Callable[[], nn.Module], op: str, tmp_path: Path, spawner: Spawner
) -> None:
    """Directions of a recurrent layer, or channels of a scan, are on different processes."""
    assert_trains(make, op, tmp_path, spawner, t=2)


HIDDEN = ("layer.weight_ih_*:0=t:3", "layer.weight_hh_*:0=t:3")
"""Each of two devices has three of the six hidden features of every gate."""


@pytest.mark.parametrize(
    ("make", "op", "mesh"),
    [
        pytest.param(
            lambda: Stacked(nn.LSTM), "train.gathered_lstm", {"t": 2}, id="lstm"
        ),
        pytest.param(
            lambda: Bidirectional(nn.GRU),
            "train.gathered_gru",
            {"d": 2, "t": 2},
            id="both directions of gru, d2 t2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: Stacked(nn.LSTM),
            "train.gathered_lstm",
            {"d": 2, "t": 2},
            id="lstm, d2 t2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: Stacked(nn.RNN),
            "train.gathered_rnn",
            {"t": 2},
            id="rnn",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_step_with_split_hidden_features(
    make: Callable[[], nn.Module],
    op: str,
    mesh: dict[str, int],
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    """Processes gather the state in each step, and scatter its gradient."""
    assert_trains(make, op, tmp_path, spawner, shard=HIDDEN, **mesh)


@pytest.mark.parametrize(
    ("layer", "t"),
    [
        (Layer("GRU", "reverse"), 2),
        pytest.param(
            Layer("GRU", "bidirectional", batch_first=True),
            4,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Layer("LSTM", "bidirectional", batch_first=True),
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(Layer("RNN", "bidirectional"), 4, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_processes_compute_what_the_reference_does(
    layer: Layer, t: int, tmp_path: Path, spawner: Spawner
) -> None:
    """Layers that PyTorch has no kernel for are among them: a reset before the product."""
    program = layer.gradients()
    split = layer.split(program, t)
    assert any(isinstance(op, GatheredOp) for op in split.walk())
    on_processes(program, split, spawner, tmp_path)


def assert_trains(
    make: Callable[[], nn.Module],
    op: str,
    tmp_path: Path,
    spawner: Spawner,
    **options: object,
) -> None:
    """Compares the loss and the step of a distributed program with those of PyTorch."""
    torch.manual_seed(0)
    module, ids = make().eval(), torch.randint(0, WORDS, (4, 6))
    labels = ids.flip(1)
    # The newer exporter writes the steps of an RNN out.
    exporter = "torchscript" if op == "train.gathered_rnn" else None
    imported = import_torch(module, (ids,), exporter=exporter)
    step = imported.module
    FoldShapesPass().apply(Context(), step)
    DifferentiatePass(loss="cross_entropy", optimizer="sgd", learning_rate=1.0).apply(
        Context(), step
    )
    loss = nn.functional.cross_entropy(module(ids).flatten(0, 1), labels.flatten())
    loss.backward()

    program = distributed(step, **options)
    found = [o for o in program.walk() if o.name == op]
    assert found and all(map(is_split, found))
    save_weights(tmp_path / "weights.safetensors", imported.weights)
    results = run_package(
        write_package(program, tmp_path / "package"),
        inputs={"ids": ids.numpy(), "labels": labels.numpy()},
        weights=tmp_path / "weights.safetensors",
        spawner=spawner,
    )
    np.testing.assert_allclose(results["loss"], loss.item(), rtol=1e-5)
    assert_descended(results, module)
