"""
Pipelines of imported models: residual and skip connections of any length, encoder and
decoder, layers that are functions or not, and training steps that PyTorch differentiated.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.imported_programs import imported, program
from support.models import model
from support.pipelines import assert_same, distributed
from support.thoroughness import IS_THOROUGH
from xdsl.context import Context

from distir.dialects.dist import SendOp, layout_of
from distir.errors import DistIRError
from distir.frontends.torch.training import TorchOptimizer, import_training_step
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.program import entry_function

MODELS = ("unet", "encoder_decoder_deep", "t5", "gpt2", "llama", "bert", "resnet")


# Whether layers are functions, the optimizer, and the strategy.
STRATEGIES: dict[str, tuple[bool, str, dict[str, Any]]] = {
    "p2-inference": (True, "", {"p": 2, "k": 2}),
    "p2-d2-inference": (True, "", {"p": 2, "k": 2, "d": 2}),
    "p2-t2-inference": (True, "", {"p": 2, "k": 1, "t": 2}),
    "p4-inference": (False, "", {"p": 4, "k": 4}),
    "p2-1f1b": (True, "none", {"p": 2, "k": 4}),
    "p2-zb-h1": (True, "none", {"p": 2, "k": 2, "schedule": "zb-h1"}),
    "p2-d2-gpipe": (True, "sgd", {"p": 2, "k": 2, "d": 2, "schedule": "gpipe"}),
    "p4-1f1b": (False, "none", {"p": 4, "k": 4}),
    "p2-d2-zbv": (False, "adamw", {"p": 2, "k": 2, "d": 2, "schedule": "zbv"}),
    "p4-uneven": (False, "none", {"p": 4, "k": 2, "schedule": "gpipe", "t": 2}),
}
SAMPLE = {
    ("unet", "p4-1f1b"),
    ("encoder_decoder_deep", "p2-1f1b"),
    ("llama", "p2-d2-inference"),
    ("resnet", "p2-d2-zbv"),
}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(
            name,
            strategy,
            marks=() if (name, strategy) in SAMPLE else pytest.mark.slow,
        )
        for name in MODELS
        for strategy in STRATEGIES
    ],
)
def test_same_results(name: str, strategy: str) -> None:
    layers, optimizer, options = STRATEGIES[strategy]
    module = program(name, layers, optimizer)
    assert_same(module, weights=imported(name).weights, **options)


def test_skips_are_sent_straight() -> None:
    """What the first stage of a U-Net gives the last one passes no stage between."""
    stages = ("down1", "up1", "up0")
    module = distributed(program("unet", False), p=4, k=2, stages=stages)
    ends = {
        (before.mesh, after.mesh)
        for op in entry_function(module).body.block.ops
        if isinstance(op, SendOp)
        and (before := layout_of(op.source))
        and (after := layout_of(op.result))
    }
    assert ("stage0", "stage3") in ends


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        pytest.param("mlp", "1f1b", marks=pytest.mark.slow),
        ("mlp", "zb-h1"),
        pytest.param("gpt2", "1f1b", marks=pytest.mark.slow),
        pytest.param("gpt2", "zb-h1", marks=pytest.mark.slow),
    ],
)
def test_steps_that_pytorch_differentiated(name: str, schedule: str) -> None:
    """The backward is told from the forward by what needs it, and follows its stage."""
    case = model(name)
    step = import_training_step(
        case.module,
        (),
        case.inputs,
        loss="mse" if name == "mlp" else "cross_entropy",
        optimizer=TorchOptimizer("sgd", learning_rate=0.1, momentum=0.9),
    )
    FoldShapesPass().apply(Context(), step.module)
    options: dict[str, Any] = {"p": 2, "k": 2, "d": 2, "schedule": schedule}
    assert_same(step.module, weights=step.weights, **options)


def test_statistics_of_the_batch() -> None:
    """
    Batch normalisation in training mode needs the whole batch before any micro-batch goes
    on: a single micro-batch can do that, and others are refused.
    """
    found = imported("resnet_train")
    step, flat = found.module.clone(), found.module.clone()
    OutlineRepeatsPass().apply(Context(), step)
    for each in (step, flat) if IS_THOROUGH else (flat,):
        DifferentiatePass(optimizer="sgd").apply(Context(), each)
        assert_same(each, weights=found.weights, p=2, k=1, d=2)
        with pytest.raises(DistIRError, match=r"onnx\.ReduceMean \(in bn at ") as error:
            distributed(each, p=2, k=2)
        assert "--batch-norm-micro-batches" in str(error.value)
        assert "float8" not in str(error.value)
