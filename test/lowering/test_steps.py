"""The steps of `lower` as passes, whose programs are texts: the printer reads nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from support.programs import parse
from support.thoroughness import chosen
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.lowering.program_source import steps
from distir.lowering.source.class_source import class_source
from distir.lowering.source.constants import WrittenConstants
from distir.lowering.source.rank_classes import ClassTexts, RankClasses
from distir.passes import get_all_passes
from distir.passes.differentiate import DifferentiatePass
from distir.transforms.projection import devices_of, project

FIRST = ("await-gradients", "fuse-operators")
LAST = (
    "reuse-operands",
    "pack-saved-tensors",
    "release-saved-tensors",
    "choose-graphs",
)
PASSES = {
    False: (*FIRST, "compute-in-messages", "outline-text", *LAST),
    True: (*FIRST, "outline-text", "outline-between-calls", *LAST),
}
"""The passes of `steps` in their order, for a program that is compiled or not."""


def mlp() -> ModuleOp:
    return build_mlp(batch=16, layers=4, d_model=32)


def gpt() -> ModuleOp:
    return build_gpt(layers=2, d_model=16, heads=2, vocab=32, batch=8, seq=8, tied=True)


PLANS: dict[str, tuple[Callable[[], ModuleOp], dict[str, Any]]] = {
    "pipeline": (gpt, dict(d=2, p=2, k=2, zero=1)),
    "overlap": (mlp, dict(d=2, t=2, zero=3, overlap=True)),
    "offloaded": (gpt, dict(d=2, offload_states=True)),
}
QUICK = (("pipeline", True), ("overlap", False), ("offloaded", False))
"""The plans of `make test`, and whether their programs are compiled."""


def printed(program: ModuleOp, devices: tuple[int, ...]) -> tuple[object, ...]:
    """The classes of a program of one rank, without another step."""
    texts = ClassTexts()
    found = class_source(RankClasses(program, devices, texts, WrittenConstants()))
    return texts.texts, found.body, found.helpers, found.members, found.overwritten


@pytest.mark.parametrize(
    ("case", "compiled"), chosen(product(PLANS, (False, True)), QUICK)
)
def test_each_step_is_a_pass_from_text_to_text(case: str, compiled: bool) -> None:
    model, options = PLANS[case]
    module = model()
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    plan = distributed(module, **options)
    own = project(plan, 0)
    text = str(own)
    for name in PASSES[compiled]:
        stepped = parse(text)
        get_all_passes()[name]()().apply(Context(), stepped)
        stepped.verify()
        text = str(stepped)
    for step in steps(compiled):
        step(own)
    devices = devices_of(plan)
    assert printed(parse(text), devices) == printed(own, devices)
