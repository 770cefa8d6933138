"""
Recovers facts about gradients that PyTorch's exporters lose: places where gradients
stop, and custom backward functions that do not compute the derivative of their forward
function.

The newer exporter writes `detach` but not `no_grad`; the older exporter writes neither.
Both write the forward function of a `torch.autograd.Function` and drop its backward
function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from distir.errors import DistIRError

if TYPE_CHECKING:
    import torch


def write_stops(program: torch.export.ExportedProgram) -> None:
    """
    Inserts a `detach` where gradients stop, in place, so that the exporter writes it:
    after results that are computed from parameters under `no_grad`, and after padding
    rows that are looked up in a table.
    """
    import torch
    from torch.export.graph_signature import InputKind

    parameters = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.PARAMETER
    }
    region: Any = torch.ops.higher_order.wrap_with_set_grad_enabled
    trained: set[torch.fx.Node] = set()
    graph = program.graph
    before = len(graph.nodes)
    for node in list(graph.nodes):
        if node.name in parameters or any(n in trained for n in node.all_input_nodes):
            trained.add(node)
        if node.target is torch.ops.aten.embedding.default and node in trained:
            _stop_at_padding(graph, node)
        if node.target is not region or node.args[0] or node not in trained:
            continue
        for result in list(node.users):
            with graph.inserting_after(result):
                stop = graph.call_function(torch.ops.aten.detach.default, (result,))
            stop.meta.update(result.meta)
            for user in list(result.users):
                if user is not stop:
                    user.replace_input_with(result, stop)
    if len(graph.nodes) > before:
        program.graph_module.recompile()


def _stop_at_padding(graph: torch.fx.Graph, lookup: torch.fx.Node) -> None:
    """Makes the padding row of the table that `lookup` reads get no gradient."""
    import torch

    aten = torch.ops.aten
    given: Any = lookup.args
    _, indices, padding = (*given, -1)[:3]
    if padding < 0:
        return
    users = list(lookup.users)

    def add(target: Any, *args: Any) -> torch.fx.Node:
        node = graph.call_function(target, args)
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        node.meta.update({n: v for n, v in lookup.meta.items() if n != "val"})
        node.meta["val"] = target(*values)
        return node

    following = lookup.next
    with graph.inserting_before(following):
        is_padding = add(
            aten.unsqueeze.default, add(aten.eq.Scalar, indices, padding), -1
        )
        stopped = add(aten.detach.default, lookup)
        rows = add(aten.where.self, is_padding, stopped, lookup)
    for user in users:
        user.replace_input_with(lookup, rows)


@dataclass
class OwnBackward:
    """
    A `torch.autograd.Function` that ran: its class, the line that calls it, and copies
    of the arguments of its first calls, if these were requested.
    """

    function: Any
    line: str
    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    @property
    def name(self) -> str:
        return self.function.__name__

    def is_derivative(self) -> bool:
        """
        Whether the function's backward function computes the derivative of its forward
        function, for the copied arguments. False if no arguments were copied.
        """
        import torch

        if not self.calls:
            return False
        try:
            with torch.enable_grad():
                return all(
                    _equal(
                        _gradients(self.function.apply, arguments),
                        _gradients(_forward_of(self.function), arguments),
                    )
                    for arguments in self.calls
                )
        except Exception:  # whatever code of users raises: it is not known then
            return False


_CALLS = 3
"""The number of calls of a function whose arguments are kept."""


@contextlib.contextmanager
def own_backwards(*, keep: bool = False) -> Generator[dict[type, OwnBackward]]:
    """
    A context manager that yields a dictionary. At the end, the dictionary contains the
    functions with a custom backward function that ran inside, by class. With `keep`, it
    also has copies of the arguments of the first calls.
    """
    import torch

    from distir.frontends.torch.modules.python import calling_line

    found: dict[type, OwnBackward] = {}
    function: Any = torch.autograd.Function
    quiet: Any = torch._C.DisableTorchFunction  # pyright: ignore[reportPrivateUsage]
    original = function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            own = found.setdefault(cls, OwnBackward(cls, calling_line()))
            if keep and not kwargs and len(own.calls) < _CALLS:
                own.calls.append(tuple(map(_copied, args)))
        # Inside, PyTorch has switched gradients off, which does not count as a stop.
        with quiet():
            return original.__get__(None, cls)(*args, **kwargs)

    function.apply = classmethod(apply)
    try:
        yield found
    finally:
        function.apply = original


@contextlib.contextmanager
def no_gradients_inside(kind: str) -> Generator[None]:
    """
    A context manager in which a model of class `kind` is exported. If the forward pass
    of the model itself asks PyTorch for a gradient, such as for a penalty, DistIRError
    is raised, because exporters cannot write the gradient.
    """
    import torch

    from distir.frontends.torch.modules.python import calling_line

    engine: Any = torch.autograd
    originals = engine.grad, engine.backward

    def refused(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            line = calling_line()
            raise DistIRError(
                f"{kind} asks for gradients in its forward (torch.autograd.grad or backward)"
                f"{f' at {line}' if line else ''}, which programs do not have. Move that into "
                f"a submodule that distir.opaque marks, which runs as it is, with all other "
                f"uses of its parameters"
            )

        return call

    engine.grad, engine.backward = map(refused, originals)
    try:
        yield
    finally:
        engine.grad, engine.backward = originals


def _copied(value: Any) -> Any:
    """
    Returns a copy of a tensor that requires gradients if the tensor does. Any other
    value is returned unchanged.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _forward_of(function: Any) -> Any:
    """
    Returns the forward function of a custom `torch.autograd.Function` as a plain
    function. PyTorch then derives the gradient instead of calling the custom backward
    function.
    """
    import torch

    base: Any = torch.autograd.Function
    if function.setup_context is not base.setup_context:
        return function.forward
    return partial(function.forward, _Context())


class _Context:
    """
    A context for a forward function that saves tensors for its backward function. The
    saved tensors are dropped, because no backward function reads them here.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # pyright: ignore[reportUnknownLambdaType]


def _gradients(run: Any, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """
    Returns the gradients of the arguments that require gradients, for fixed gradients
    of the results of `run`. The gradient of an argument without influence on the
    results is zero.
    """
    import torch
    from torch.utils import _pytree

    def is_trained(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.requires_grad

    leaves = [value for value in arguments if is_trained(value)]
    # A forward may write into its arguments, which leaves must not be.
    results = run(*(v.clone() if is_trained(v) else v for v in arguments))
    trained = [result for result in _pytree.tree_leaves(results) if is_trained(result)]
    seeds = [
        torch.arange(1, r.numel() + 1, dtype=torch.float64, device=r.device)
        .cos()
        .to(r.dtype)
        .reshape(r.shape)
        for r in trained
    ]
    if not trained or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(trained, leaves, seeds, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient  # pyright: ignore[reportUnnecessaryComparison]
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def _equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of gradients are equal up to rounding."""
    for one, other in zip(some, others, strict=True):
        allowed = 1e-2 if one.element_size() == 2 else 1e-4
        largest = float(other.abs().max()) if other.numel() else 0.0
        apart = float((one - other).abs().max()) if other.numel() else 0.0
        if not apart <= allowed * max(largest, 1e-6):
            return False
    return True


class LostStops(TorchFunctionMode):
    """
    Records the PyTorch functions, called inside this context, that cut the gradient
    between their operands and their results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        import torch

        result = func(*args, **(kwargs or {}))
        stops = func in _STOPS or not torch.is_grad_enabled()
        if func is torch.nn.functional.embedding:
            signature = inspect.signature(torch.nn.functional.embedding)
            given = signature.bind(*args, **(kwargs or {})).arguments
            if given.get("padding_idx") is not None and given["weight"].requires_grad:
                self.found.add("padding_idx")
        if stops and isinstance(result, torch.Tensor) and result.is_floating_point():
            operands = [*args, *(kwargs or {}).values()]
            if any(isinstance(a, torch.Tensor) and a.requires_grad for a in operands):
                name = getattr(func, "__name__", str(func))
                self.found.add("data" if name == "__get__" else name)
        return result


def _stops() -> tuple[Any, ...]:
    import torch

    data: Any = torch.Tensor.data
    return (torch.Tensor.detach, torch.Tensor.detach_, torch.detach, data.__get__)


_STOPS = _stops()
