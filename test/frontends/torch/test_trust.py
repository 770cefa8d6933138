"""Programs are compared with their modules, and Python that runs once is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.models import EXPORTERS
from support.programs import ops_of
from torch import Tensor, nn

import distir
from distir.errors import DistIRError
from distir.frontends.torch.checks import comparison
from distir.frontends.torch.importer import import_torch
from distir.frontends.torch.trust import ACCEPTED

X = torch.linspace(-1, 1, 32).reshape(8, 4)


class Layers(nn.Module):
    """Two layers, of which subclasses change what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.number = 0

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class LayerDrop(Layers):
    def between(self, x: Tensor) -> Tensor:
        return x if self.training and random.random() < 0.5 else torch.relu(x)


class NumPyNoise(Layers):
    def between(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())


class Branch(Layers):
    def between(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else torch.relu(x)


class RowsThatAreThere(Layers):
    """How many there are depends on values."""

    def between(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 100]
        return x if rows.numel() == 0 else torch.relu(x)


class RowsThatAreCounted(Layers):
    def between(self, x: Tensor) -> Tensor:
        return x if len(torch.nonzero(x > 100)) == 0 else torch.relu(x)


class Counter(Layers):
    def between(self, x: Tensor) -> Tensor:
        self.number += 1
        return x * min(self.number, 5)


class BufferCounter(Layers):
    def between(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls


class Forgetful(Layers):
    """Its calls differ, and no attribute says so."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def between(self, x: Tensor) -> Tensor:
        self.seen.append(0)
        return x * len(self.seen)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class StraightThrough(Layers):
    def between(self, x: Tensor) -> Tensor:
        return Rounded.apply(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "accepted", "line"),
    [
        (LayerDrop, "python-random", "return x if self.training and random.random() <"),
        (NumPyNoise, "python-random", "return x * float(np.random.rand())"),
        (Branch, "control-flow", "return x if x.sum() > 0 else torch.relu(x)"),
        (RowsThatAreThere, "control-flow", "return x if rows.numel() == 0 else"),
        (RowsThatAreCounted, "control-flow", "return x if len(torch.nonzero(x > 100))"),
        (Counter, "control-flow", "self.number += 1"),
        (BufferCounter, "mismatch", "self.calls.add_(1)"),
        (StraightThrough, "custom-backward", "return Rounded.apply(x)"),
    ],
)
@pytest.mark.filterwarnings("ignore:PyTorch's older exporter wrote")
def test_python_that_runs_once_is_refused(
    make: Callable[[], nn.Module], accepted: str, line: str
) -> None:
    with pytest.raises(DistIRError) as refused:
        import_torch(make(), (X,), training=True)
    message = str(refused.value)
    assert re.search(re.escape(__file__) + r":\d+ \(`" + re.escape(line), message)
    assert f'allow=("{accepted}",)' in message
    others = [name for name in ACCEPTED if name != accepted]
    with pytest.raises(DistIRError, match=re.escape(line)):
        import_torch(make(), (X,), training=True, allow=others)
    import_torch(make(), (X,), training=True, allow=(accepted,))


def test_calls_that_differ_are_refused() -> None:
    with pytest.raises(DistIRError, match="something else when it is called again"):
        import_torch(Forgetful(), (X,), training=True)


class Square(torch.autograd.Function):
    """A backward that is the derivative, written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * ctx.factor * x * gradients[0], None


class Squares(Layers):
    def between(self, x: Tensor) -> Tensor:
        return Square.apply(x, 3.0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_backward_that_is_the_derivative_is_accepted(
    exporter: Any, recwarn: pytest.WarningsRecorder
) -> None:
    import_torch(Squares(), (X,), exporter=exporter, training=True)
    assert not [w for w in recwarn if "backward of its own" in str(w.message)]
    with pytest.raises(DistIRError, match="Square, with a backward"):  # nothing is run
        import_torch(Squares(), (X,), training=True, check=False)


class WhileExported(nn.Module):
    """Leaves a part out while it is exported, as modules do with masks of attention."""

    def forward(self, x: Tensor) -> Tensor:
        return x if torch.compiler.is_compiling() else x.tanh()


class Second(nn.Module):
    """Takes another input while it is exported, which the example inputs do not show."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x if torch.compiler.is_compiling() else y) * 2


@pytest.mark.parametrize("training", [False, True])
def test_a_difference_is_located(training: bool) -> None:
    inner = nn.Sequential(nn.Tanh(), WhileExported(), nn.Linear(4, 4))
    module = nn.Sequential(nn.Linear(4, 4), inner, nn.ReLU())
    with pytest.raises(DistIRError) as refused:
        import_torch(module, (X,), training=training)
    assert "something else on the example inputs" in str(refused.value)
    assert "It begins in '1.1' (WhileExported)" in str(refused.value)
    assert import_torch(module, (X,), training=training, check=False).module


def test_other_inputs_show_what_the_example_does_not() -> None:
    with pytest.raises(DistIRError, match="something else on other inputs"):
        import_torch(Second(), (X, X.clone()))


def test_a_difference_may_be_accepted() -> None:
    with pytest.warns(UserWarning, match="computes something else .*is accepted"):
        import_torch(WhileExported(), (X,), allow=("mismatch",))


class ManyStates(nn.Module):
    """Dropout of modules and functions, statistics, and a number that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = (
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            nn.Dropout(),
        )
        self.cache: Tensor | None = None
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.cache, self.seen = x, len(x)
        x = nn.functional.dropout(self.norm(self.layer(x)), 0.2, self.training)
        return self.drop(x)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("training", [False, True])
def test_a_module_with_dropout_is_as_before(exporter: Any, training: bool) -> None:
    module = ManyStates()
    module.drop.eval()
    before = {n: b.clone() for n, b in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    states = random.getstate(), np.random.get_state()[1], torch.get_rng_state()
    imported = import_torch(module, (X,), exporter=exporter, training=training)
    assert not imported.notes
    assert len(ops_of(imported.module, "Dropout")) == training
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(b, before[n]) for n, b in module.state_dict().items())
    assert module.cache is None and module.seen == 0
    assert random.getstate() == states[0]
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


class Captures(nn.Module):
    """Installs a hook when it first runs, as models of transformers do to collect states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: list[torch.Tensor] = []
        self.layer.__dict__["states"] = states
        if not self.__dict__.get("installed"):
            self.layer.register_forward_hook(
                lambda layer, _, out: layer.__dict__["states"].append(out)
            )
            self.__dict__["installed"] = True
        self.layer(x)
        return torch.stack(states).sum(0)


@pytest.mark.parametrize("runs_before", [False, True])
def test_hooks_that_a_module_installs_are_installed_once(runs_before: bool) -> None:
    module, x = Captures().eval(), torch.randn(2, 4)
    if runs_before:
        module(x)
    import_torch(module, (x,))
    torch.testing.assert_close(module(x), module.layer(x))


def test_a_program_that_takes_long_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_WORK", 100.0)
    program = distir.import_model(Layers(), (X,))
    assert "was not compared with Layers" in program.notes[0]


def test_unknown_names_are_refused() -> None:
    known = "control-flow, python-random, custom-backward, mismatch"
    with pytest.raises(DistIRError, match=f"'branches' that can be .* {known}"):
        import_torch(Layers(), (X,), allow=("branches",))


class Amplified(nn.Module):
    """Rounding in its first step decides its result to a tenth."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(1e5 * x.exp().log())


def test_rounding_is_no_difference() -> None:
    import_torch(Amplified(), (X,))
