"""Modules in training mode: dropout and batch statistics, through both exporters."""

from __future__ import annotations

import pytest
import torch
from support.models import EXPORTERS
from support.programs import names_by_role, ops_of, round_trip
from torch import nn

from distir.dialects.constants import direct_constant
from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch

BOTH = pytest.mark.parametrize("exporter", EXPORTERS)


class Attention(nn.Module):
    """PyTorch's fused attention, with dropout of its probabilities."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.ratio = ratio

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ratio = self.ratio if self.training else 0.0
        q = self.query(x)
        return nn.functional.scaled_dot_product_attention(q, x, x, dropout_p=ratio)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.25), nn.Dropout(0.5)
    )


@BOTH
def test_training_mode(exporter):
    module, x = network(), torch.randn(2, 4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    imported = import_torch(module, (x,), exporter=exporter, training=True)
    round_trip(imported.module)
    (norm,) = ops_of(imported.module, "BatchNormalization")
    assert norm.attribute("training_mode") == 1
    assert norm.attribute("momentum") == 0.75
    assert norm.attribute("epsilon") == pytest.approx(1e-5)
    (drop,) = ops_of(imported.module, "Dropout")
    assert [float(direct_constant(drop.operands[i])) for i in (1, 2)] == [0.5, 1.0]
    # The module is as it was, and so are its weights here and PyTorch's random numbers.
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
        if name in imported.weights:
            assert torch.equal(torch.tensor(imported.weights[name]), value)
    assert module[1].momentum == 0.25
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(names_by_role(imported.module)["constant"]) == {
        *("1.running_mean", "1.running_var")
    }


@BOTH
def test_each_part_is_in_its_own_mode(exporter):
    module = network()
    module[1].eval()
    imported = import_torch(
        module, (torch.randn(2, 4),), exporter=exporter, training=True
    )
    (norm,) = ops_of(imported.module, "BatchNormalization")
    assert norm.attribute("training_mode") == 0
    assert len(ops_of(imported.module, "Dropout")) == 1


@BOTH
@pytest.mark.parametrize("training", [True, False])
def test_evaluation(exporter, training):
    """Without `training`, or with a module in evaluation mode, nothing is random."""
    module = network().train(not training)
    imported = import_torch(
        module, (torch.randn(2, 4),), exporter=exporter, training=training
    )
    (norm,) = ops_of(imported.module, "BatchNormalization")
    assert norm.attribute("training_mode") == 0
    assert not ops_of(imported.module, "Dropout")


@BOTH
def test_dropout_inside_attention(exporter):
    """The exporters write it as if it were switched off."""
    imported = import_torch(
        Attention(0.25), (torch.randn(1, 2, 4, 8),), exporter=exporter, training=True
    )
    (drop,) = ops_of(imported.module, "Dropout")
    assert [float(direct_constant(drop.operands[i])) for i in (1, 2)] == [0.25, 1.0]


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(8, momentum=None),
        nn.BatchNorm1d(8, track_running_stats=False),
    ],
)
def test_statistics_that_cannot_be_trained(norm):
    module = nn.Sequential(nn.Linear(4, 8), norm)
    with pytest.raises(DistIRError, match="BatchNorm1d '1' has no running statistics"):
        import_torch(module, (torch.randn(2, 4),), training=True)
