"""
Exports opaque modules as ops of `train`. Each call becomes one node in DistIR's own
domain. Before the export, a run of the model on its example inputs finds the types of
the results and measures the work of each call.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from distir.errors import DistIRError
from distir.frontends.torch.export.measured import measured
from distir.frontends.torch.modules.opaque import (
    Declared,
    declared_of,
    opaque_parts,
    state_of,
)
from distir.frontends.torch.modules.opaque_calls import (
    FlatCall,
    tensors_in,
)
from distir.frontends.torch.modules.pickled import ContentPickler
from distir.sharding.opaque_rule import OpaqueRule, parse_opaque_rule

_NODE = "opaque"
"""The name of the exported nodes for calls of opaque modules."""

_CODES = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.bfloat16: 16,
}
"""ONNX's codes of element types."""


@dataclass
class ObservedCall:
    """
    A call of an opaque module in a run on the example inputs.

    - `inputs`: the tensors and all other arguments of the call;
    - `shapes`, `dtypes`: the shapes and types of the results;
    - `kind`: the class of the result: a tensor, a list or a tuple;
    - `draws`: whether the call drew random numbers of PyTorch;
    - `flops`, `memory`, `gradient_flops`, `gradient_memory`: the measured floating-point
      operations and bytes of the forward pass and of the gradient.
    """

    inputs: FlatCall
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    kind: type
    draws: bool
    flops: int
    memory: int
    gradient_flops: int
    gradient_memory: int


@dataclass
class OpaquePart:
    """
    An opaque module of a model.

    - `name`: the module's name in the model, for messages;
    - `key`: the module's name in programs, which modules of equal code and settings share;
    - `module`, `declared`: the module and the facts declared about it;
    - `observed`: the calls of the module in a run on the example inputs, in order.
    """

    name: str
    key: str
    module: torch.nn.Module
    declared: Declared
    observed: list[ObservedCall] = field(default_factory=list[ObservedCall])

    @property
    def what(self) -> str:
        """The name and the class of the module, for messages."""
        shown = self.name or "the model itself"
        return f"opaque module {shown!r} ({type(self.module).__name__})"

    def rule(self) -> OpaqueRule:
        """
        Returns the sharding rule of the module, in which the parameters and buffers of
        the module count as inputs.
        """
        text = self.declared.full_rule(self.module, state_of(self.module))
        return parse_opaque_rule(text)


def parts_of(module: torch.nn.Module) -> list[OpaquePart]:
    """Returns the opaque modules of a model, without observed calls."""
    keys: dict[bytes, str] = {}
    found: list[OpaquePart] = []
    for name, part in opaque_parts(module).items():
        own = name or type(part).__name__
        content = _content(part)
        key = own if content is None else keys.setdefault(content, own)
        declared = declared_of(part)
        assert declared is not None
        found.append(OpaquePart(name, key, part, declared))
        _check_own(module, found[-1])
    return found


def _check_own(module: torch.nn.Module, part: OpaquePart) -> None:
    """
    Raises DistIRError if a part of the model outside of an opaque module uses
    parameters of the opaque module.
    """
    own = {id(parameter) for parameter in part.module.parameters()}
    parts = list(module.named_modules(remove_duplicate=False)) if own else []
    places = tuple(f"{name}." for name, each in parts if each is part.module)
    for name, other in parts:
        for each, parameter in other.named_parameters(recurse=False):
            if id(parameter) in own and not f"{name}.".startswith(places):
                raise DistIRError(
                    f"{part.what} shares the parameter {f'{name}.{each}'.strip('.')!r} with "
                    f"other parts of the model, which a program would hold apart; make a "
                    f"module opaque that computes both uses, and returns all results"
                )


def _content(part: torch.nn.Module) -> bytes | None:
    """
    Returns bytes that are equal for modules with equal code and settings; the values of
    parameters and buffers do not matter. Returns None if the module cannot be pickled.
    """
    file = io.BytesIO()
    tensors = {id(tensor) for tensor in state_of(part).values()}
    with contextlib.suppress(Exception):  # of the code that pickles the user's objects
        ContentPickler(file, tensors).dump(part)
        return file.getvalue()
    return None


def observe(
    module: torch.nn.Module,
    parts: Sequence[OpaquePart],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """
    Runs a model on its example inputs and records the calls of its opaque modules. The
    caller must set the modes of the model first, and restore its state afterwards.
    Raises DistIRError for a call that a program cannot represent, and any error that
    the model raises.
    """
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(_with_forward(part, partial(_observed, part)))
        with torch.no_grad():
            module(*args, **kwargs)
    _make_alike(parts)


def _make_alike(parts: Sequence[OpaquePart]) -> None:
    """
    Gives calls that differ only in the values of tensors the same measured work: the
    maximum over these calls. Repeated layers can thus become one function.
    """
    groups: dict[tuple[object, ...], list[ObservedCall]] = {}
    for part in parts:
        for call in part.observed:
            key = (
                part.key,
                part.module.training,
                *call.shapes,
                str(call.inputs.arguments),
            )
            groups.setdefault(key, []).append(call)
    for calls in groups.values():
        for name in ("flops", "memory", "gradient_flops", "gradient_memory", "draws"):
            most = max(getattr(call, name) for call in calls)
            for call in calls:
                setattr(call, name, most)


Forward = Callable[..., Any]


@contextlib.contextmanager
def _with_forward(
    part: OpaquePart, make: Callable[[Forward], Forward]
) -> Generator[None]:
    """
    A context manager inside which `make(forward)` replaces the forward method of a
    module.
    """
    attributes = vars(part.module)
    before, patched = part.module.forward, attributes.get("forward")
    attributes["forward"] = make(before)
    try:
        yield
    finally:
        if patched is None:
            del attributes["forward"]
        else:
            attributes["forward"] = patched


def _observed(part: OpaquePart, forward: Forward) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        call = FlatCall.of(part.what, args, kwargs)
        state = state_of(part.module)
        buffers = {n: b.clone() for n, b in part.module.named_buffers()}
        known = [*call.tensors, *state.values()]
        before = torch.get_rng_state()
        output, flops, memory = measured(lambda: forward(*args, **kwargs), known)
        draws = not torch.equal(before, torch.get_rng_state())
        found = tensors_in(part.what, output)
        for name, value in part.module.named_buffers():
            if not torch.equal(value, buffers[name]):
                raise DistIRError(
                    f"{part.what} changes its buffer {name!r} when it runs, which a program "
                    f"does not see; keep that outside of the opaque module"
                )
        gradient = 0, 0
        if any(t.requires_grad for t in state.values()):
            gradient = _gradient(forward, args, kwargs, known)
        first = not part.observed
        part.observed.append(
            ObservedCall(
                FlatCall([t.detach().clone() for t in call.tensors], call.arguments)
                if first
                else FlatCall([], call.arguments),
                [tuple(t.shape) for t in found],
                [t.dtype for t in found],
                type(output) if isinstance(output, list | tuple) else torch.Tensor,
                draws,
                *(flops, memory, *gradient),
            )
        )
        return output

    return run


def _gradient(
    forward: Forward,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    known: Sequence[torch.Tensor],
) -> tuple[int, int]:
    """
    Returns the floating-point operations and the bytes of memory of one forward and one
    backward pass of the module.
    """

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().requires_grad_()
        return value

    own_args = [leaf(value) for value in args]
    own_kwargs = {name: leaf(value) for name, value in kwargs.items()}
    leaves = [
        t
        for t in (*own_args, *own_kwargs.values(), *known)
        if isinstance(t, torch.Tensor) and t.requires_grad
    ]

    def run() -> Any:
        with torch.enable_grad():
            output = forward(*own_args, **own_kwargs)
            found = [t for t in tensors_in("it", output) if t.requires_grad]
            ones = [torch.ones_like(t) for t in found]
            return torch.autograd.grad(found, leaves, ones, allow_unused=True)

    _, flops, memory = measured(run, known)
    return flops, memory


@contextlib.contextmanager
def opaque_as_ops(parts: Sequence[OpaquePart]) -> Generator[None]:
    """
    A context manager that exports calls of opaque modules as ops of `train`. Raises
    DistIRError for a call that contradicts the module's declarations.
    """
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(_with_forward(part, partial(_exported, part)))
        yield


def _exported(part: OpaquePart, forward: Forward) -> Forward:
    calls = 0

    def trace(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        call = FlatCall.of(part.what, args, kwargs)
        observed = None
        if part.observed:
            observed = part.observed[min(calls, len(part.observed) - 1)]
        calls += 1
        return _node(part, call, observed)

    return trace


def _node(part: OpaquePart, call: FlatCall, observed: ObservedCall | None) -> Any:
    """
    Adds a node for a call, and returns its results in the structure of the module's
    result. `observed` is the same call on the example inputs, if there is one.
    """
    declared, state = part.declared, state_of(part.module)
    rule = parse_opaque_rule(declared.full_rule(part.module, state))
    inputs = [*call.tensors, *state.values()]
    try:
        shapes = _shapes(rule, [tuple(t.shape) for t in inputs])
    except DistIRError as error:
        raise DistIRError(f"{part.what}: {error}") from error
    dtypes = [_first_float(inputs)] * len(shapes)
    kind: type = torch.Tensor if len(shapes) == 1 else tuple
    trains = part.module.training
    draws = trains
    works = declared.flops, declared.gradient_flops
    memories = declared.memory, declared.gradient_memory
    if observed is not None:
        if [*observed.shapes] != shapes:
            raise DistIRError(
                f"{part.what}: it gives tensors of shape "
                f"{', '.join(str(list(s)) for s in observed.shapes)}, but its rule "
                f"{declared.rule!r} says {', '.join(str(list(s)) for s in shapes)}"
            )
        dtypes, kind, draws = observed.dtypes, observed.kind, observed.draws
        works = _known(works, observed.flops, observed.gradient_flops)
        memories = _known(memories, observed.memory, observed.gradient_memory)
    attributes: dict[str, Any] = {
        "module": part.key,
        "rule": str(rule),
        "dtypes": [_code(part, dtype) for dtype in dtypes],
        "trains": int(trains),
        "draws": int(draws),
        "flops": works[0],
        "gradient_flops": works[1],
        "workspace": memories[0],
        "gradient_workspace": memories[1],
        "sent": declared.sends,
        "arguments": None if call.arguments is None else json.dumps(call.arguments),
        "tensors": list(state) or None,
    }
    from distir.frontends.onnx.names import TRAIN_DOMAIN  # imports onnx

    make: Any = torch.onnx.ops.symbolic_multi_out
    found = make(
        f"{TRAIN_DOMAIN}::{_NODE}",
        inputs,
        {name: value for name, value in attributes.items() if value is not None},
        dtypes=dtypes,
        shapes=shapes,
        version=1,
    )
    if kind is torch.Tensor:
        return found[0]
    return list(found) if kind is list else tuple(found)


def _known(
    declared: tuple[str | None, str | None], forward: int, gradient: int
) -> tuple[str | None, str | None]:
    """
    Returns the work of a module and the work of its gradient as text. Declared work
    takes precedence over measured work. If only the module's work is declared, the work
    of the gradient is None and derived later.
    """
    own, of_gradient = declared
    if own is not None:
        return declared
    return str(forward), of_gradient or (str(gradient) if gradient else None)


def _shapes(
    rule: OpaqueRule, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """
    Returns the shapes of the results for `inputs`, the shapes of the module's inputs.
    Raises DistIRError if the shapes of the inputs contradict the rule.
    """
    factors = rule.factors
    if len(inputs) != len(factors.operands):
        raise DistIRError(
            f"its rule {rule} is for {len(factors.operands)} tensors, among arguments, "
            f"parameters and buffers, but a call has {len(inputs)}"
        )
    sizes = factors.of_operands.sizes(inputs, [])
    return [factors.shape(dims, sizes) for dims in factors.results]


def _first_float(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    floats = (t.dtype for t in tensors if t.is_floating_point())
    return next(floats, torch.float32)


def _code(part: OpaquePart, dtype: torch.dtype) -> int:
    if dtype not in _CODES:
        raise DistIRError(
            f"{part.what} gives a tensor of type {dtype}, which programs do not have"
        )
    return _CODES[dtype]
