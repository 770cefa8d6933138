"""DistIR's kernels in the places that they are made for: in GPT-2 and BERT, in training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from support.schedules import scheduled
from support.thoroughness import IS_THOROUGH
from support.training_programs import distributed
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.kernel import kernels as kernels_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.dropout import (
    DropoutOp,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.launch.packages import Spawner, run_package
from distir.lowering.kernel_files import OWN
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from distir.program import (
    argument_names,
    entry_function,
    functions,
    result_names,
)
from distir.scheduling import Schedule, kernels, patterns
from distir.scheduling.kernel_check import KernelCheck, kernel_with_gradient

CLASSES = 48


class Loss(nn.Module):
    """The loss of a model of transformers."""

    def __init__(self, model: nn.Module, **options: bool) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=labels, **self.options).loss


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        vocab_size=CLASSES,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Loss(GPT2LMHeadModel(config), use_cache=False)


def bert() -> nn.Module:
    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=CLASSES,
        max_position_embeddings=8,
    )
    return Loss(BertForMaskedLM(config))


@cache
def imported(make: Callable[[], nn.Module]) -> ModuleOp:
    """The loss in training mode, as `distir import` gives it."""
    words = torch.arange(16).view(2, 8)
    module = import_torch(make(), (words, words.clone()), training=True).module
    for pass_ in (FoldShapesPass(), RaisePatternsPass(), OutlineRepeatsPass()):
        pass_.apply(Context(), module)
    return module


def of_gpt2(s: Schedule) -> None:
    layers = s["**.h.*"]
    for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        layers[name].decompose()
    layers.find(patterns.rows_bias_dropout_add).replace(kernels.bias_dropout_add)
    s.find(patterns.head_cross_entropy).replace(kernels.linear_cross_entropy)


def of_bert(s: Schedule) -> None:
    layers = s["**.layer.*"]
    kernel = kernels.bias_dropout_add_norm.having(epsilon=1e-12)
    layers.find(patterns.bias_dropout_add_norm_of(1e-12)).replace(kernel)
    layers.find(patterns.bias_gelu).replace(kernels.bias_gelu)
    s.find(patterns.cross_entropy).decompose()
    kernel = kernels.biased_cross_entropy.having(reduction="sum")
    s.find(patterns.head_bias_cross_entropy_sum).replace(kernel)


def step(module: ModuleOp) -> ModuleOp:
    module = module.clone()
    options = {"loss": "none", "optimizer": "sgd", "learning_rate": 0.1}
    DifferentiatePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


def arguments_of(module: ModuleOp) -> list[np.ndarray]:
    """Random arguments, with words and labels of the vocabulary, and a label ignored."""
    found = random_arguments(module, 0)
    names = argument_names(entry_function(module))
    words = np.random.default_rng(0).integers(0, CLASSES, (2, 2, 8))
    words[1, 0, 3] = -100
    found[names.index("ids")], found[names.index("labels")] = words
    return found


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of DistIR's kernels are modules, for a test."""
    monkeypatch.syspath_prepend(OWN)
    yield
    for file in OWN.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("make", "script", "rules"),
    [
        (
            gpt2,
            of_gpt2,
            {
                "[a b, c], [c], [a, b, c], [a, b, c] -> [a, b, c]",
                "[2, 8, a], [48, a], [2 8] -> [] keep a",
            },
        ),
        (
            bert,
            of_bert,
            {
                "[a, b, 16], [16], [a, b, 16], [16], [16], [a, b, 16] -> [a, b, 16]",
                "[a, b, c], [c] -> [a, b, c]",
                "[a, b, c], [48, c], [48], [a b] -> [] keep c",
            },
        ),
    ],
)
def test_a_step_with_kernels_is_the_step_without(
    make: Callable[[], nn.Module],
    script: Callable[[Schedule], None],
    rules: set[str],
) -> None:
    """Also the same elements are dropped, whatever the distribution."""
    s = Schedule()
    script(s)
    module = imported(make)
    asked = scheduled(module, s)
    made = kernels_of(asked)
    assert {kernel.rule.data for kernel in made.values()} == rules
    for name in made:
        for kernel in kernel_with_gradient(asked.clone(), name):
            file, _, function = kernel.implementation.data.partition(":")
            KernelCheck(kernel, getattr(import_module(file), function)).run()
    plain, other = step(module), step(asked)
    arguments = arguments_of(plain)
    wanted = run_program(plain, arguments)
    for options in ({}, {"d": 2}, {"t": 2}) if IS_THOROUGH else ({"d": 2, "t": 2},):
        found = distributed(other, **options) if options else other
        for got, value in zip(run_program(found, arguments), wanted, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)


def test_noise_is_drawn_again_in_the_backward() -> None:
    """It is no residual: the backward of a layer has the op, not its result."""
    s = Schedule()
    of_bert(s)
    found = step(scheduled(imported(bert), s))
    for function in functions(found).values():
        if "layer" in function.sym_name.data:
            drawing = (DropoutOp, DroppedAttentionOp, DroppedAttentionGradOp)
            drawn = [op for op in function.body.block.ops if isinstance(op, drawing)]
            # Two in the layer, and one in its attention.
            assert len(drawn) == 3


def test_a_vocabulary_that_the_heads_kernel_would_gather_is_not_split() -> None:
    """The kernel needs all classes; without it, the loss itself is split over them."""
    for has_kernel in (True, False):
        s = Schedule()
        if has_kernel:
            s.find(patterns.head_cross_entropy).replace(kernels.linear_cross_entropy)
        s["**.wte"].param("weight").split(0, "t")
        asked = step(scheduled(imported(gpt2), s))
        # An axis of size 1 splits nothing.
        distributed(asked, d=2)
        if has_kernel:
            with pytest.raises(
                DistIRError,
                match=r"test_kernels_in_models.py, line \d+ asks that axis 't' splits "
                r"dimension 0, but kernel @linear_cross_entropy, which reads it, keeps",
            ):
                distributed(asked, t=2)
            continue
        found = distributed(asked, t=2)
        gathered = [
            op
            for op in found.walk()
            if op.name == "collective.all_gather"
            and CLASSES in shape_of(op.operands[0].type)
        ]
        assert not gathered
    s = Schedule()
    s.find(patterns.head_cross_entropy).replace(kernels.linear_cross_entropy)
    whole = distributed(step(scheduled(imported(gpt2), s)), t=2)
    gathers = [op for op in whole.walk() if op.name == "collective.all_gather"]
    assert not [op for op in gathers if CLASSES in shape_of(op.operands[0].type)]


def test_processes_of_a_step_with_kernels(tmp_path: Path, spawner: Spawner) -> None:
    s = Schedule()
    of_bert(s)
    module = imported(bert)
    plain = step(module)
    arguments = arguments_of(plain)
    package = write_package(distributed(step(scheduled(module, s)), d=2), tmp_path)
    assert {file.stem for file in (tmp_path / "user_kernels").iterdir()} == {
        *("__init__", "bias_gelu", "dropout_add", "linear_cross_entropy")
    }
    inputs = dict(zip(argument_names(entry_function(plain)), arguments, strict=True))
    results = run_package(package, inputs=inputs, spawner=spawner)
    names = result_names(entry_function(plain))
    for name, value in zip(names, run_program(plain, arguments), strict=True):
        np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-5)
