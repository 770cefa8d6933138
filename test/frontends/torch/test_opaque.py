"""Opaque modules are imported as one op, and their declared rules are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.parallel_opaque import (
    SENT,
    Model,
    OwnExperts,
    SentExperts,
    batch,
    opaque_experts,
    sent_experts,
)
from torch import nn

import distir
from distir.dialects.train_ops.opaque import OpaqueOp
from distir.frontends.torch.checks.opaque import modules_on_arrays
from distir.frontends.torch.export.opaque import parts_of
from distir.frontends.torch.importer import import_torch
from distir.hardware import load_cluster
from distir.interpreters.reference import run_program
from distir.interpreters.simulator.simulate import simulate
from distir.interpreters.train.opaque import opaque_modules
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.plans.programs import replace_cluster
from distir.program import Program
from distir.tools.files import apply_passes


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0)


def _named(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": x}


def _more(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    return x + 1


class Scale(nn.Module):
    def __init__(self, change: Callable[..., Any] = _same) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.change = change

    def forward(self, x: torch.Tensor, *more: Any, **named: Any) -> Any:
        return self.change(x * self.weight, *more, **named)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x


class Calls(nn.Module):
    def __init__(self, part: nn.Module, *more: Any, **named: Any) -> None:
        super().__init__()
        self.part, self.more, self.named = part, more, named

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x, *self.more, **self.named)


X = torch.arange(32.0).reshape(8, 4) / 32


def _imported(part: nn.Module, *more: Any, **named: Any) -> OpaqueOp:
    found = import_torch(Calls(part, *more, **named), (X,))
    assert not found.notes
    (op,) = (op for op in found.module.walk() if isinstance(op, OpaqueOp))
    return op


def test_the_op_has_what_is_declared_and_measured() -> None:
    torch.manual_seed(0)
    found = import_torch(Model(opaque_experts).double(), batch()[:1], training=True)
    first, second = (op for op in found.module.walk() if isinstance(op, OpaqueOp))
    assert first.rule.data == (
        "[b, s, d], [4, 8, 16], [4, 16, 8], [4, 8], [4] -> [b, s, d] keep d"
    )
    # The products of 2 choices of 48 tokens, and of the router.
    assert first.flops is not None and first.gradient_flops is not None
    assert int(first.flops.data) == 2 * 48 * (2 * 2 * 8 * 16 + 8 * 4)
    assert int(first.gradient_flops.data) == 3 * int(first.flops.data)
    assert first.workspace is not None and int(first.workspace.data) > 48 * 8 * 8
    assert first.symbol == second.symbol == "blocks.0"  # of the same code and settings
    assert first.trains is not None and first.draws is None


def test_declared_work_is_taken() -> None:
    part = distir.opaque(Scale(), "b d -> b d", weights={"weight": "d"}, flops="2*b*d")
    op = _imported(part)
    assert op.flops is not None and op.flops.data == "2*b*d"
    assert op.rule.data == "[b, d], [d] -> [b, d]" and op.gradient_flops is None


def test_arguments_that_are_no_tensors_stay() -> None:
    def twice(x: torch.Tensor, factor: float, *, add: bool) -> Any:
        return [x * factor + add, x.sum(0)]

    op = _imported(
        distir.opaque(Scale(twice), "b d -> b d, d", keep="d"), 3.0, add=True
    )
    assert op.call_arguments == {"args": ["*", 3.0], "kwargs": {"add": True}}
    assert len(op.outputs) == 2


def _refused(part: Callable[[], nn.Module], *more: Any) -> str:
    with pytest.raises(distir.DistIRError) as error:
        import_torch(Calls(part(), *more), (X,))
    return str(error.value)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            lambda: distir.opaque(Scale(_centred), "b d -> b d", keep="d"),
            "opaque module 'part' (Scale): its rule 'b d -> b d' lets 'b' be split: result 0, "
            "put together from 2 parts of it, differs from that of the whole",
        ),
        (
            lambda: distir.opaque(Scale(), "b d -> b d"),
            "on a part of 2 of its 4 elements it fails (RuntimeError",
        ),
        (
            lambda: distir.opaque(Scale(_mean), "b d -> d", keep="d"),
            'if it needs that dimension whole, say keep="d b"',
        ),
        (
            lambda: distir.opaque(Scale(), "b d -> d b", keep="b d"),
            "it gives tensors of shape [8, 4], but its rule 'b d -> d b' says [4, 8]",
        ),
        (
            lambda: distir.opaque(Scale(), "b s d -> b s d"),
            "has [b, s, d] for a tensor of shape [8, 4]",
        ),
        (
            lambda: distir.opaque(Scale(), "b d, b d -> b d"),
            "is for 3 tensors, among arguments, parameters and buffers, but a call has 2",
        ),
        (
            lambda: distir.opaque(Scale(_named), "b d -> b d"),
            "gives a dict; an opaque module gives a tensor, or a list or tuple",
        ),
        (
            lambda: distir.opaque(Counting(), "b d -> b d"),
            "changes its buffer 'count' when it runs",
        ),
        (lambda: distir.opaque(Scale(), "b d"), "cannot read the rule 'b d' of Scale"),
        (
            lambda: distir.opaque(Scale(), "b d -> b d", weights={"bias": "d"}),
            "weights names 'bias', which Scale has not as a parameter or buffer (it has weight)",
        ),
        (
            lambda: distir.opaque(Scale(), "b d -> b d", weights={"weight": "d e"}),
            "weights has 2 dimensions in 'd e', for a parameter or buffer of shape [4]",
        ),
        (
            lambda: distir.opaque(Scale(), "b@e d -> b@e d"),
            "names the mesh axis 'e', over which a module communicates by itself; use "
            "distir.local_map",
        ),
        (
            lambda: distir.local_map(Scale(), "b d -> b d"),
            "names no mesh axis",
        ),
        (
            lambda: distir.local_map(Scale(), "b@e d@e -> b d"),
            "axis 'e' splits two dimensions",
        ),
    ],
)
def test_a_wrong_declaration_is_named(part: Callable[[], nn.Module], said: str) -> None:
    assert said in _refused(part)


def test_an_argument_that_programs_cannot_hold_is_named() -> None:
    said = _refused(lambda: distir.opaque(Scale(), "b d -> b d", keep="d"), [1])
    assert "is called with argument 1 of type list" in said


def test_modules_without_values_are_imported() -> None:
    with torch.device("meta"):
        model = Model(opaque_experts)
    found = import_torch(model, batch()[:1], training=True)
    ops = [op for op in found.module.walk() if isinstance(op, OpaqueOp)]
    assert len(ops) == 2 and ops[0].flops is None


@pytest.mark.parametrize("options", [dict(d=2), dict(e=2), dict(e=2, d=2)], ids=str)
def test_a_distributed_step_computes_the_same_on_arrays(
    options: dict[str, int],
) -> None:
    """The reference interpreter brings together what a module communicates about."""
    torch.manual_seed(0)
    model = Model(sent_experts).double()
    ids, labels = batch()
    found = import_torch(model, (ids,), training=True)
    step = found.module
    apply_passes(step, DifferentiatePass(loss="cross_entropy", optimizer="none"))
    dist = step.clone()
    apply_passes(dist, DistributePass(d=options.get("d", 1), e=options.get("e", 1)))
    known = {**found.weights, "ids": ids.numpy(), "labels": labels.numpy()}
    given = [known[argument.name] for argument in Program(step).arguments]
    with opaque_modules(modules_on_arrays(parts_of(model), training=True)):
        wanted, ours = run_program(step, given), run_program(dist, given)
    for one, other in zip(wanted, ours, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_text_alone_has_no_module() -> None:
    found = import_torch(Model(opaque_experts).double(), batch()[:1])
    values = [batch()[0].numpy(), *found.weights.values()]
    with pytest.raises(distir.DistIRError, match=r"'blocks\.0' is in the script"):
        run_program(found.module, values)


def test_marks_change_nothing_else() -> None:
    torch.manual_seed(0)
    part = OwnExperts()
    before = part(torch.ones(2, 3, 8))
    assert distir.opaque(part, "b s d -> b s d", keep="d") is part
    assert torch.equal(part(torch.ones(2, 3, 8)), before)
    assert isinstance(distir.local_map(SentExperts(), **SENT), SentExperts)
    own = distir.local_map(_more, "b@e d -> b@e d")
    assert torch.equal(own(X), X + 1)


@pytest.mark.parametrize("sends", [None, "2*4*b*s*d"])
def test_the_simulator_counts_declared_messages(sends: str | None) -> None:
    """Of 2 * 4 * 8 * 6 * 8 bytes each of two devices sends a half in the forward."""
    part = distir.local_map(SentExperts(), **SENT, sends=sends)
    program = import_torch(Calls(part), (torch.zeros(8, 6, 8),)).module
    cluster = load_cluster("cpu", 2)
    replace_cluster(program, cluster)
    apply_passes(program, DistributePass(e=2, cluster=cluster.sym_name.data))
    sent = simulate(program).communication_bytes
    assert sent == [0 if sends is None else 1536] * 2


def test_a_package_has_no_copy_of_the_module(tmp_path: Path) -> None:
    program = import_torch(Model(opaque_experts).double(), batch()[:1]).module
    with pytest.raises(distir.DistIRError, match=r"train the model with distir"):
        write_package(program, tmp_path / "package")
    assert not (tmp_path / "package").exists()
