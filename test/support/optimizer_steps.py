"""
Steps of every optimizer on a small network with a table, by the interpreter or as
processes, beside PyTorch's own optimizers and published formulas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.interpreters.reference import program_runner
from distir.passes.differentiate import DifferentiatePass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    updated_arguments,
)
from support.programs import parse

Arrays = dict[str, npt.NDArray[Any]]

STEPS = 5
BATCH, WIDTH, HIDDEN, ROWS = 8, 64, 128, 64


def network(dtype: str, **options: Any) -> ModuleOp:
    """
    A training step of rows that are looked up, two layers and the mean squared error.
    """

    def tensor(*sizes: int, element: str = dtype) -> str:
        return f"tensor<{'x'.join(map(str, sizes))}x{element}>"

    ids = tensor(BATCH, element="i64")
    x, h = tensor(BATCH, WIDTH), tensor(BATCH, HIDDEN)
    table, bias = tensor(ROWS, WIDTH), tensor(HIDDEN)
    up, down = tensor(WIDTH, HIDDEN), tensor(HIDDEN, WIDTH)

    def argument(name: str, type_: str, role: str = "parameter") -> str:
        return f'%{name}: {type_} {{dist.role = "{role}", dist.name = "{name}"}}'

    arguments = ", ".join(
        [
            argument("ids", ids, "input"),
            argument("table", table),
            argument("up", up),
            argument("bias", bias),
            argument("down", down),
        ]
    )
    module = parse(f"""
        func.func @main({arguments}) -> {x} {{
          %x = onnx.Gather(%table, %ids) {{axis = 0 : i64}} : ({table}, {ids}) -> {x}
          %a = onnx.MatMul(%x, %up) : ({x}, {up}) -> {h}
          %b = onnx.Add(%a, %bias) : ({h}, {bias}) -> {h}
          %c = onnx.Tanh(%b) : ({h}) -> {h}
          %y = onnx.MatMul(%c, %down) : ({h}, {down}) -> {x}
          func.return %y : {x}
        }}""")
    step = DifferentiatePass(loss="mse", **options)
    step.apply(Context(), module)
    module.verify()
    return module


@functools.cache
def start(dtype: Any) -> Arrays:
    """The first values of the parameters, and the batch."""
    random = np.random.default_rng(0)
    shapes = {
        "table": (ROWS, WIDTH),
        "up": (WIDTH, HIDDEN),
        "bias": (HIDDEN,),
        "down": (HIDDEN, WIDTH),
        "labels": (BATCH, WIDTH),
    }
    found = {
        name: (random.standard_normal(shape) * 0.3).astype(dtype)
        for name, shape in shapes.items()
    }
    return {"ids": random.integers(0, ROWS, BATCH), **found}


PARAMETERS = ("table", "up", "bias", "down")


def interpreted(module: ModuleOp, dtype: Any, steps: int = STEPS) -> Arrays:
    """Returns the arguments of a training step after some steps; states start as zeros."""
    entry = entry_function(module)
    names, given = argument_names(entry), start(dtype)
    values: list[npt.NDArray[Any]] = []
    for name, argument in zip(names, entry.body.block.args, strict=True):
        zeros = np.zeros(shape_of(argument.type), numpy_dtype(element_type(argument)))
        value = given.get(name.removesuffix(".master"), zeros)
        values.append(value.astype(zeros.dtype))
    run = program_runner(module)
    for _ in range(steps):
        results = run(values)
        for result, argument in updated_arguments(entry).items():
            assert results[result].dtype == values[argument].dtype
            values[argument] = results[result]
    return dict(zip(names, values, strict=True))


def state_names(module: ModuleOp) -> set[str]:
    """Returns the names of the states of a training step."""
    entry = entry_function(module)
    pairs = zip(argument_names(entry), argument_roles(entry), strict=True)
    return {name for name, role in pairs if role == "state"}


class Lion(torch.optim.Optimizer):
    """Lion as in the publication, Program 1, with decoupled weight decay."""

    def __init__(self, parameters: Any, lr: float, betas: Any, weight_decay: float):
        super().__init__(
            parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay)
        )

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(m * beta1 + p.grad * (1 - beta1))
                change = group["lr"] * (update + group["weight_decay"] * p.data)
                p.data -= change
                self.state[p]["m"] = m * beta2 + p.grad * (1 - beta2)


class Lamb(torch.optim.Optimizer):
    """LAMB as in the publication, Algorithm 2, with the identity as scaling."""

    def __init__(self, parameters: Any, lr: float, eps: float, weight_decay: float):
        super().__init__(parameters, dict(lr=lr, eps=eps, weight_decay=weight_decay))

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                zeros = torch.zeros_like(p)
                m = state["m"] = 0.9 * state.get("m", zeros) + 0.1 * p.grad
                v = state.get("v", zeros)
                v = state["v"] = 0.999 * v + 0.001 * p.grad * p.grad
                ratio = (m / (1 - 0.9**t)) / (
                    (v / (1 - 0.999**t)).sqrt() + group["eps"]
                )
                direction = ratio + group["weight_decay"] * p.data
                trust = p.data.norm() / direction.norm()
                p.data -= group["lr"] * trust * direction


def _of_transformers(parameters: Any, **settings: Any) -> Any:
    """Returns Adafactor of transformers, which takes seconds to import."""
    from transformers.optimization import Adafactor

    return Adafactor(parameters, **settings)


def newton_schulz(
    gradient: torch.Tensor, coefficients: Any, steps: int, epsilon: float
) -> torch.Tensor:
    """
    PyTorch's function of Muon, but with products in the gradient's type instead of bf16.
    """
    a, b, c = coefficients
    x = gradient.T if gradient.shape[0] > gradient.shape[1] else gradient
    x = x / x.norm().clamp(min=epsilon)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if gradient.shape[0] > gradient.shape[1] else x


class MuonAndAdamW:
    """PyTorch's Muon for the two matrices and its AdamW for the rest."""

    def __init__(self, parameters: Sequence[Any], **settings: Any):
        table, up, bias, down = parameters
        self.muon = torch.optim.Muon([up, down], lr=0.01, weight_decay=0.1, **settings)
        self.adamw = torch.optim.AdamW([table, bias], lr=0.01, weight_decay=0.1)

    def zero_grad(self) -> None:
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def step(self) -> None:
        self.muon.step()
        self.adamw.step()


Make = Callable[[Any], Any]

PUBLISHED: dict[str, tuple[dict[str, Any], Make]] = {
    "lion": (
        dict(optimizer="lion", learning_rate=1e-3, weight_decay=0.2),
        lambda p: Lion(p, 1e-3, (0.9, 0.99), 0.2),
    ),
    "lamb": (
        dict(optimizer="lamb", learning_rate=1e-2),
        lambda p: Lamb(p, 1e-2, 1e-6, 0.01),
    ),
    "adafactor": (
        dict(optimizer="adafactor", learning_rate=1e-2, weight_decay=0.1),
        lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=0.1),
    ),
    "adafactor of transformers": (
        dict(optimizer="adafactor", learning_rate=1e-2, epsilon=1e-15),
        lambda p: _of_transformers(p, scale_parameter=True, relative_step=True),
    ),
    "adafactor of transformers, fixed steps": (
        dict(
            optimizer="adafactor",
            learning_rate=3e-3,
            epsilon=1e-15,
            weight_decay=0.1,
            relative_step=False,
        ),
        lambda p: _of_transformers(
            p, lr=3e-3, scale_parameter=False, relative_step=False, weight_decay=0.1
        ),
    ),
    "muon": (
        dict(optimizer="muon", learning_rate=1e-2),
        lambda p: MuonAndAdamW(p, adjust_lr_fn="match_rms_adamw"),
    ),
    "muon, original steps": (
        dict(optimizer="muon", learning_rate=1e-2, muon_scale="original"),
        lambda p: MuonAndAdamW(p, nesterov=True, momentum=0.95),
    ),
}
"""For each case the options of `differentiate`, and PyTorch's optimizer."""


def by_pytorch(make: Make, dtype: Any, steps: int = STEPS) -> Arrays:
    """Returns the parameters after steps of an optimizer of PyTorch."""
    given = {name: torch.tensor(value) for name, value in start(dtype).items()}
    own = {name: torch.nn.Parameter(given[name]) for name in PARAMETERS}
    optimizer = make(list(own.values()))
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = torch.tanh(own["table"][given["ids"]] @ own["up"] + own["bias"])
        loss = torch.nn.functional.mse_loss(hidden @ own["down"], given["labels"])
        loss.backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in own.items()}


def largest_difference(found: Arrays, expected: Arrays) -> float:
    """
    Returns the largest difference between parameters, as a share of how far the
    parameter has moved at most.
    """
    worst = 0.0
    for name, value in expected.items():
        moved = np.abs(value - start(value.dtype)[name]).max()
        worst = max(worst, float(np.abs(found[name] - value).max() / moved))
    return worst


def mean_difference(found: Arrays, expected: Arrays) -> float:
    """
    Returns the difference between parameters, as a share of how far they have moved:
    both in root mean square.
    """
    start_values = {n: start(v.dtype)[n] for n, v in expected.items()}
    parts = [(found[n] - v, v - start_values[n]) for n, v in expected.items()]
    different, moved = (
        sum(float((pair[i] ** 2).sum()) for pair in parts) for i in (0, 1)
    )
    return (different / moved) ** 0.5
