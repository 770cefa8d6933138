"""
An alternative way to a training step: PyTorch differentiates, and its whole step
(forward pass, backward pass and optimizer as one function) is exported to ONNX and
imported.

Programs made by `differentiate` are shorter and keep layers and scopes. This
alternative needs no gradient rules of DistIR, so tests compare the results of the rules
with it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, UnitAttr
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import COUNTER, NAME, OF, ROLE, UPDATES
from distir.dialects.train_ops.optimizers import STEP
from distir.errors import DistIRError, one_of
from distir.frontends.torch.export.failures import reason, tell_of_backwards
from distir.frontends.torch.modules.inputs import distinct, leaf_names
from distir.frontends.torch.modules.state import unchanged
from distir.program import (
    LOSS,
    argument_attributes,
    entry_function,
    name_hint,
    set_argument_attributes,
)

if TYPE_CHECKING:
    import torch

    from distir.frontends.imported_model import ImportedModel

    Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class TorchOptimizer:
    """
    An update rule of `torch.optim` as a pure function. States have the type of their
    parameter and start as zeros. A `weight_decay` of None is PyTorch's default.
    """

    name: str = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states that belong to one parameter."""
        if self.name == "sgd":
            return ("momentum",) if self.momentum > 0 else ()
        return ("exp_avg", "exp_avg_sq")

    def update(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        states: Sequence[torch.Tensor],
        step: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """
        Returns the new parameter, followed by its new states. `step` is the number of
        this step, counted from 1.
        """
        import torch

        default = 0.01 if self.name == "adamw" else 0.0
        decay = default if self.weight_decay is None else self.weight_decay
        if decay and self.name == "adamw":
            parameter = parameter * (1 - self.learning_rate * decay)
        elif decay:
            gradient = gradient + decay * parameter
        if self.name == "sgd":
            if not states:
                return (parameter - self.learning_rate * gradient,)
            buffer = self.momentum * states[0] + gradient
            return parameter - self.learning_rate * buffer, buffer
        assert step is not None
        count = step.to(torch.promote_types(parameter.dtype, torch.float32))
        first = self.beta1 * states[0] + (1 - self.beta1) * gradient
        second = self.beta2 * states[1] + (1 - self.beta2) * gradient * gradient
        root = (second / (1 - self.beta2**count)).sqrt() + self.epsilon
        rate = self.learning_rate / (1 - self.beta1**count)
        # Between 0-d tensors the wider type wins, here that of the count.
        change = (rate * (first / root)).to(parameter.dtype)
        return parameter - change, first, second


@dataclass(frozen=True)
class _Argument:
    name: str
    role: str
    value: torch.Tensor
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])


def import_training_step(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss = "cross_entropy",
    labels: torch.Tensor | None = None,
    output: int = 0,
    optimizer: TorchOptimizer | str = "sgd",
) -> ImportedModel:
    """
    Returns the program `(inputs, labels, parameters, constants, states) -> (loss, new
    parameters, new states)` of a training step, with the names, roles and
    `dist.updates` that `differentiate` gives. States start as zeros and are not among
    the weights.

    - `args`, `kwargs`: example inputs; their shapes, and all values that are not
      tensors, become fixed.
    - `loss`: `cross_entropy` (logits `[..., V]`, integer labels `[...]`), `mse`, or a
      function of the output and the labels, for which `labels` is an example.
    - `output`: the index of the output that the loss takes, among all tensors that the
      module returns.

    Consequences of the export by PyTorch:

    - The module is in evaluation mode: there is no dropout, and batch normalisation
      uses its running statistics and does not change them.
    - The forward pass is exported first and then differentiated. Tracing the module
      itself fails where Hugging Face models look at the values of an attention mask.
    - The exporter gives `nll_loss_forward` a total weight of 1, which silently scales
      the gradients of a cross-entropy, and it cannot write a few ops of backward passes.
      PyTorch's own decompositions replace these ops before the export. The backward op of
      fused attention has no decomposition, so attention is traced as separate ops.
    - The backward op of a convolution has no ONNX form and is an error.
    - The exporter's optimizer is switched off, because it would drop Adam's epsilon.
    - The graph has no module scopes and no functions. Passes that need them, such as
      `outline-repeats` or tensor parallelism by name, find little.
    - A parameter on which the loss does not depend is an argument, but is not updated. A
      parameter that requires no gradient is a constant. Tied parameters are one
      argument.

    Raises DistIRError if PyTorch cannot export the step, or if an option is unknown.
    """
    if isinstance(optimizer, str):
        optimizer = TorchOptimizer(optimizer)
    one_of("optimizer", optimizer.name, OPTIMIZERS)
    from distir.frontends.torch.export.gradients import own_backwards

    own_args, own_kwargs = distinct(module, args, kwargs)
    try:
        with (
            unchanged(module, training=False),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            with own_backwards() as backwards:
                step = _Step(
                    *(module, own_args, own_kwargs),
                    *(loss, labels, output, optimizer),
                )
            imported = step.imported()
    except DistIRError:
        raise
    except Exception as error:
        raise DistIRError(
            f"PyTorch cannot export a training step of {type(module).__name__}: "
            + reason(
                error, "export the forward with import_torch and use differentiate"
            )
        ) from error
    tell_of_backwards(module, list(backwards.values()), refuse=True)
    return imported


class _Step:
    """A training step as a function that takes and returns a flat list of tensors."""

    def __init__(
        self,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Loss,
        labels: torch.Tensor | None,
        output: int,
        optimizer: TorchOptimizer,
    ):
        import torch
        from torch.utils import _pytree

        from distir.frontends.torch.export.gradients import write_stops

        self.loss, self.output, self.optimizer = loss, output, optimizer
        # Where gradients stop is known only where they are computed.
        with torch.enable_grad():
            program = torch.export.export(module, tuple(args), dict(kwargs))
        write_stops(program)
        self.forward = program.module(check_guards=False)
        with torch.no_grad():
            prediction = self._prediction(self.forward(*args, **kwargs))
        self.leaves, self.spec = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        positional = inspect.signature(module.forward).bind_partial(*args).arguments
        names = leaf_names({**positional, **kwargs}, "input")
        self.arguments = [
            _Argument(name, "input", leaf)
            for name, leaf in zip(names, self.leaves, strict=True)
            if isinstance(leaf, torch.Tensor)
        ]
        if labels is None:
            labels = _labels_like(prediction, loss)
        self.arguments.append(_Argument("labels", "label", labels))
        parameters = dict(self.forward.named_parameters())
        trained = {n: p.detach() for n, p in parameters.items() if p.requires_grad}
        for name, value in {
            **parameters,
            **dict(self.forward.named_buffers()),
        }.items():
            role = "parameter" if name in trained else "constant"
            self.arguments.append(_Argument(name, role, value.detach()))
        for name, value in trained.items():
            for state in optimizer.states:
                zeros = torch.zeros_like(value)
                own = _Argument(f"{name}.{state}", "state", zeros, {OF: OF.attr(name)})
                self.arguments.append(own)
        if optimizer.name != "sgd":
            counter = torch.zeros((), dtype=torch.int64)
            self.arguments.append(
                _Argument(STEP, "state", counter, {COUNTER: UnitAttr()})
            )
        self.results: list[str] = []

    def _prediction(self, outputs: Any) -> torch.Tensor:
        import torch
        from torch.utils import _pytree

        leaves = [
            v for v in _pytree.tree_leaves(outputs) if isinstance(v, torch.Tensor)
        ]
        if not 0 <= self.output < len(leaves):
            raise DistIRError(
                f"the module has {len(leaves)} results, there is no output {self.output}"
            )
        return leaves[self.output]

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch
        from torch.utils import _pytree

        named: dict[str, torch.Tensor] = {}
        held: dict[str, torch.Tensor] = {}
        inputs: list[torch.Tensor] = []
        trained: dict[str, torch.Tensor] = {}
        for argument, value in zip(self.arguments, values, strict=True):
            named[argument.name] = value
            if argument.role == "input":
                inputs.append(value)
            elif argument.role == "parameter":
                trained[argument.name] = value.detach().requires_grad_()
            elif argument.role == "constant":
                held[argument.name] = value
        rest = iter(inputs)
        leaves = [next(rest) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        args, kwargs = _pytree.tree_unflatten(leaves, self.spec)
        outputs = torch.func.functional_call(
            self.forward, {**trained, **held}, args, kwargs
        )
        loss = _loss(self.loss, self._prediction(outputs), named["labels"])
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        step = named[STEP] + 1 if STEP in named else None
        new: dict[str, torch.Tensor] = {}
        states: dict[str, torch.Tensor] = {} if step is None else {STEP: step}
        for name, gradient in zip(trained, gradients, strict=True):
            # Whatever the types say: where the loss does not depend on the parameter.
            if gradient is None:  # pyright: ignore[reportUnnecessaryComparison]
                continue
            own = [f"{name}.{state}" for state in self.optimizer.states]
            new[name], *after = self.optimizer.update(
                named[name], gradient, [named[s] for s in own], step
            )
            states |= dict(zip(own, after, strict=True))
        self.results = [*new, *states]
        return (loss.detach(), *new.values(), *states.values())

    def imported(self) -> ImportedModel:
        """Traces, exports and imports the step, and returns the program."""
        import torch
        from torch._decomp import decomposition_table
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from distir.frontends.onnx.importer import import_onnx
        from distir.frontends.torch.export.decompositions import quick_decompositions
        from distir.frontends.torch.export.repetitions import without_repetitions

        names = [a.name for a in self.arguments]
        if twice := {n for n in names if names.count(n) > 1}:
            raise DistIRError(
                f"two arguments of the training step would be called {min(twice)!r}; "
                "rename an input of the module's forward"
            )
        values = tuple(a.value for a in self.arguments)
        table = {
            op: decomposition
            for op, decomposition in decomposition_table.items()
            if "backward" in op.name() or "nll_loss" in op.name()
        }
        with sdpa_kernel(SDPBackend.MATH):
            traced = make_fx(self, decomposition_table=table)(*values)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "step.onnx")
            with quick_decompositions(), without_repetitions():
                exported = torch.onnx.export(
                    traced, values, dynamo=True, optimize=False, verbose=False
                )
            assert exported is not None
            exported.save(path)
            program = import_onnx(path)
            # The file is deleted, so mapped tensors must be read now.
            weights = {n: a.copy() for n, a in program.weights.items()}
        function = entry_function(program.module)
        attributes = argument_attributes(function)
        for each in attributes:
            # Tensors that the module holds outside of its parameters and buffers.
            each[ROLE] = ROLE.attr("constant")
        for argument, each, value in zip(
            self.arguments, attributes, function.body.block.args, strict=False
        ):
            each[NAME] = NAME.attr(argument.name)
            each[ROLE] = ROLE.attr(argument.role)
            each.update(argument.attributes)
            value.name_hint = name_hint(argument.name)
            if argument.role in ("parameter", "constant"):
                weights[argument.name] = argument.value.numpy(force=True).copy()
        set_argument_attributes(function, attributes)
        function.res_attrs = ArrayAttr(
            [DictionaryAttr({ROLE: ROLE.attr(LOSS), NAME: NAME.attr("loss")})]
            + [
                DictionaryAttr({NAME: NAME.attr(n), UPDATES: UPDATES.attr(n)})
                for n in self.results
            ]
        )
        program.weights = weights
        return program


def _labels_like(prediction: torch.Tensor, loss: Loss) -> torch.Tensor:
    import torch

    if loss == "mse":
        return torch.zeros_like(prediction)
    if loss == "cross_entropy":
        return torch.zeros(prediction.shape[:-1], dtype=torch.int64)
    raise DistIRError(
        f"the labels of the loss {loss!r} are not known; give an example as `labels`, or "
        "choose the loss cross_entropy or mse"
    )


def _loss(loss: Loss, prediction: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    if callable(loss):
        return loss(prediction, labels)
    if loss == "mse":
        return functional.mse_loss(prediction, labels)
    classes = prediction.shape[-1]
    return functional.cross_entropy(prediction.reshape(-1, classes), labels.reshape(-1))
