"""
Training steps that PyTorch differentiated: equal to PyTorch's own step, to what
`differentiate` makes of the forward program, and to themselves when distributed.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.models import Mlp, imported, model
from xdsl.context import Context

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.training import TorchOptimizer, import_training_step
from distir.interpreters.reference import program_runner, run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
    updated_arguments,
)

CASES = pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", "adam"),
        ("mlp", "adamw"),
        ("gpt2_shallow", "sgd"),
        pytest.param("gpt2", "adamw", marks=pytest.mark.slow),
        pytest.param("llama", "sgd", marks=pytest.mark.slow),
    ],
)
OPTIMIZERS = {
    "sgd": TorchOptimizer("sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "adam": TorchOptimizer("adam", learning_rate=0.01),
    # Where a gradient is only rounding errors (of biases of keys, which cancel out in a
    # softmax), an update is those divided by epsilon: it has to be larger than they are.
    "adamw": TorchOptimizer("adamw", learning_rate=0.01, epsilon=1e-3),
}


def _loss(name: str) -> str:
    return "mse" if name == "mlp" else "cross_entropy"


@functools.cache
def _step(name: str, optimizer: str) -> ImportedModel:
    case = model(name)
    step = import_training_step(
        case.module,
        (),
        case.inputs,
        loss=_loss(name),
        optimizer=OPTIMIZERS[optimizer],
    )
    FoldShapesPass().apply(Context(), step.module)
    step.module.verify()
    return step


@functools.cache
def _labels(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    output = next(iter(model(name).outputs.values()))
    if name == "mlp":
        return torch.randn(output.shape, generator=generator)
    return torch.randint(0, 127, output.shape[:-1], generator=generator)


def _start(name: str, optimizer: str) -> dict[str, np.ndarray]:
    """The value of every argument of the first step."""
    step = _step(name, optimizer)
    function = entry_function(step.module)
    given = {**step.weights, **model(name).numpy_inputs}
    given["labels"] = _labels(name).numpy()
    values: dict[str, np.ndarray] = {}
    for argument, value in zip(
        argument_names(function), function.body.block.args, strict=True
    ):
        dtype = np.int64 if argument == "optimizer.step" else np.float32
        zeros = np.zeros(value.type.get_shape(), dtype)
        values[argument] = given.get(argument, zeros)
    return values


def _two_steps(module, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of the second step: states count only from there on."""
    function = entry_function(module)
    arguments, results = argument_names(function), result_names(function)
    replaced = updated_arguments(function)
    values = dict(values)
    found: dict[str, np.ndarray] = {}
    run = program_runner(module)
    for _ in range(2):
        outputs = run([values[n] for n in arguments])
        found = dict(zip(results, outputs, strict=True))
        for result, argument in replaced.items():
            values[arguments[argument]] = outputs[result]
    return found


@functools.cache
def _expected(name: str, optimizer: str) -> dict[str, np.ndarray]:
    step = _step(name, optimizer)
    return _two_steps(step.module, _start(name, optimizer))


def _torch_optimizer(optimizer: str, parameters) -> torch.optim.Optimizer:
    o = OPTIMIZERS[optimizer]
    if optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=o.learning_rate,
            momentum=o.momentum,
            weight_decay=o.weight_decay or 0.0,
        )
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=o.learning_rate, eps=o.epsilon)


def _check_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """
    Up to 1e-5 of the largest number of the same kind: rounding errors of a gradient that
    nearly cancels out are as large as those of the others.
    """
    assert set(found) == set(expected)
    scales: dict[str, float] = {}
    for name, value in expected.items():
        largest = max(float(np.abs(value).max()), 1e-6)
        scales[_kind(name)] = max(scales.get(_kind(name), 0.0), largest)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name],
            value,
            rtol=1e-5,
            atol=1e-5 * scales[_kind(name)],
            err_msg=name,
        )


def _kind(name: str) -> str:
    last = name.rpartition(".")[2]
    return last if last in ("exp_avg", "exp_avg_sq", "momentum", "loss") else ""


@CASES
def test_roles_and_updates(name: str, optimizer: str):
    step = _step(name, optimizer)
    function = entry_function(step.module)
    roles = dict(zip(argument_names(function), argument_roles(function), strict=True))
    trained = dict(model(name).module.named_parameters())
    states = {f"{n}.{s}" for n in trained for s in OPTIMIZERS[optimizer].states} | (
        {"optimizer.step"} if optimizer != "sgd" else set()
    )
    assert {n for n, r in roles.items() if r == "input"} == set(model(name).inputs)
    assert [n for n, r in roles.items() if r == "label"] == ["labels"]
    assert {n for n, r in roles.items() if r == "parameter"} == set(trained)
    assert {n for n, r in roles.items() if r == "state"} == states
    assert result_names(function)[0] == "loss"
    names = list(roles)
    updated = {names[i] for i in updated_arguments(function).values()}
    assert updated == set(trained) | states
    held = {n for n, r in roles.items() if r in ("parameter", "constant")}
    assert set(step.weights) == held


@CASES
def test_equals_the_step_of_pytorch(name: str, optimizer: str):
    found = _expected(name, optimizer)
    case = model(name)
    before = {n: v.clone() for n, v in case.module.state_dict().items()}
    try:
        updater = _torch_optimizer(optimizer, case.module.parameters())
        value = torch.zeros(())
        for _ in range(2):
            updater.zero_grad()
            output = case.module(**case.inputs)
            if not isinstance(output, torch.Tensor):
                output = output[0]
            if name == "mlp":
                value = torch.nn.functional.mse_loss(output, _labels(name))
            else:
                value = torch.nn.functional.cross_entropy(
                    output.flatten(0, 1), _labels(name).flatten()
                )
            value.backward()
            updater.step()
        expected = {"loss": value.detach().numpy()}
        for parameter, tensor in case.module.named_parameters():
            expected[parameter] = tensor.detach().numpy()
            for key, state in updater.state[tensor].items():
                last = "momentum" if key == "momentum_buffer" else key
                expected[f"{parameter}.{last}"] = state.numpy()
                if key == "step":
                    expected["optimizer.step"] = expected.pop(f"{parameter}.step")
        _check_equal(found, expected)
    finally:
        case.module.load_state_dict(before)
        case.module.zero_grad()


@CASES
def test_equals_differentiate(name: str, optimizer: str):
    forward = replace(imported(name), module=imported(name).module.clone())
    o = OPTIMIZERS[optimizer]
    DifferentiatePass(
        loss=_loss(name),
        optimizer=o.name,
        learning_rate=o.learning_rate,
        momentum=o.momentum,
        epsilon=o.epsilon,
        weight_decay=o.weight_decay,
    ).apply(Context(), forward.module)
    start = {**forward.weights, **_start(name, optimizer)}
    # Of the names of a tied parameter, the two ways may keep different ones.
    module = model(name).module
    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept = {id(p): n for n, p in module.named_parameters()}
    alias = {n: kept[id(p)] for n, p in parameters.items()}
    states = ("exp_avg", "exp_avg_sq", "momentum")

    def ours(theirs: str) -> str:
        parameter, _, last = theirs.rpartition(".")
        if last in states:
            return f"{alias[parameter]}.{last}"
        return alias.get(theirs, theirs)

    function = entry_function(forward.module)
    values = {
        n: start[ours(n)] if ours(n) in start else start[n]
        for n in argument_names(function)
    }
    theirs = _two_steps(forward.module, values)
    _check_equal(_expected(name, optimizer), {ours(n): v for n, v in theirs.items()})


@CASES
def test_data_parallel(name: str, optimizer: str):
    module = _step(name, optimizer).module.clone()
    DistributePass(d=2).apply(Context(), module)
    module.verify()
    found = _two_steps(module, _start(name, optimizer))
    _check_equal(found, _expected(name, optimizer))


def test_frozen_and_unused_parameters():
    module = Mlp()
    module.unused = torch.nn.Parameter(torch.ones(3))
    module.layers[0].weight.requires_grad_(False)
    step = import_training_step(module, (torch.ones(2, 16),), loss="mse")
    function = entry_function(step.module)
    names = argument_names(function)
    roles = dict(zip(names, argument_roles(function), strict=True))
    assert roles["layers.0.weight"] == "constant"
    updated = {names[i] for i in updated_arguments(function).values()}
    assert "unused" not in updated
    assert "layers.0.weight" not in updated
    assert "layers.0.bias" in updated
    assert module.training


def test_what_cannot_be_is_said():
    args = (torch.ones(2, 16),)
    with pytest.raises(DistIRError, match="no optimizer 'lion'"):
        import_training_step(Mlp(), args, loss="mse", optimizer="lion")
    with pytest.raises(DistIRError, match="labels of the loss 'hinge'"):
        import_training_step(Mlp(), args, loss="hinge")
    with pytest.raises(DistIRError, match="there is no output 3"):
        import_training_step(Mlp(), args, loss="mse", output=3)
    convolution = torch.nn.Sequential(
        torch.nn.Conv1d(2, 2, 3), torch.nn.ReLU(), torch.nn.Conv1d(2, 2, 3)
    )
    with pytest.raises(DistIRError, match="convolution_backward"):
        import_training_step(convolution, (torch.ones(1, 2, 9),), loss="mse")


def test_a_loss_of_ones_own():
    def absolute(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (output - labels).abs().mean()

    module, example = Mlp(), torch.randn(2, 16)
    labels = torch.zeros(2, 8)
    step = import_training_step(module, (example,), loss=absolute, labels=labels)
    values = {**step.weights, "input": example.numpy(), "labels": labels.numpy()}
    function = entry_function(step.module)
    value = run_program(step.module, [values[n] for n in argument_names(function)])[0]
    expected = absolute(module(example), labels).item()
    np.testing.assert_allclose(value, expected, rtol=1e-5)


class Stopped(torch.nn.Module):
    """A layer's result, rounded with the gradient of the identity, times a fixed one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            guide = 2 * y
        return (y + (torch.round(y) - y).detach()) * guide


def test_gradients_stop_where_pytorch_stops_them():
    torch.manual_seed(0)
    module, x, labels = Stopped(), torch.randn(3, 4), torch.randn(3, 4)
    step = import_training_step(module, (x,), loss="mse", optimizer="sgd")
    main = entry_function(step.module)
    given = {**step.weights, "x": x.numpy(), "labels": labels.numpy()}
    results = run_program(step.module, [given[n] for n in argument_names(main)])
    torch.nn.functional.mse_loss(module(x), labels).backward()
    torch.optim.SGD(module.parameters(), lr=1e-3).step()
    found = dict(zip(result_names(main), results, strict=True))
    for name, parameter in module.named_parameters():
        expected = parameter.detach().numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0]


class Signs(Stopped):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sign.apply(self.layer(x))


def test_a_backward_that_is_lost_is_refused():
    with pytest.raises(DistIRError, match="Sign, with a backward of its own"):
        import_training_step(Signs(), (torch.ones(2, 4),), loss="mse")
