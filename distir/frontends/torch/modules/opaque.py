"""
Marks modules as opaque. DistIR does not trace an opaque module: each process calls the
module on its parts of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from distir.errors import DistIRError
from distir.sharding.opaque_rule import OpaqueRule, in_brackets, parse_opaque_rule

_MARK = "_distir_opaque"

Part = TypeVar("Part", bound=torch.nn.Module)


@dataclass(frozen=True)
class Declared:
    """
    The facts that a user declares about an opaque module; see `opaque`. `communicates`
    tells whether the module contains its own communication (`local_map`).
    """

    rule: str
    weights: tuple[tuple[str, str], ...] = ()
    keep: str = ""
    flops: str | None = None
    gradient_flops: str | None = None
    memory: str | None = None
    gradient_memory: str | None = None
    sends: str | None = None
    communicates: bool = False

    @property
    def sides(self) -> tuple[str, str]:
        """
        The texts of the inputs and of the results in the sharding rule, each in the
        notation with brackets.
        """
        inputs, _, results = in_brackets(self.rule).partition("->")
        return inputs.strip(), results.partition(" keep ")[0].strip()

    def full_rule(self, part: torch.nn.Module, tensors: Mapping[str, Any]) -> str:
        """
        Returns the sharding rule of a module in the notation with brackets, with the
        parameters and buffers `tensors` after the inputs. Dimensions without a
        declaration are not split.
        """
        known = dict(self.weights)
        inputs, results = self.sides
        weights = [
            f"[{', '.join(_dims(known.get(name), tensor.shape))}]"
            for name, tensor in tensors.items()
        ]
        kept = in_brackets(self.rule).partition(" keep ")[2].split()
        kept += [name for name in self.keep.split() if name not in kept]
        operands = ", ".join(filter(None, (inputs, *weights)))
        return f"{operands} -> {results}" + (f" keep {' '.join(kept)}" if kept else "")


def opaque(
    module: Part,
    rule: str,
    *,
    weights: Mapping[str, str] | None = None,
    keep: str = "",
    flops: str | int | None = None,
    gradient_flops: str | int | None = None,
    memory: str | int | None = None,
    gradient_memory: str | int | None = None,
) -> Part:
    """
    Marks a module as opaque, and returns the module. `distir.parallelize`,
    `import_model` and `search` do not trace an opaque module. Each process calls the
    module on its parts of the inputs, and PyTorch's autograd computes the gradients.
    Outside of DistIR the module behaves as before.

    ```python
    self.moe = distir.opaque(MyExperts(64), rule="b s d -> b s d", keep="d")
    ```

    - `rule`: the sharding rule. It names the dimensions of all tensors among the
      module's arguments, in order, and of its results. Dimensions of the same name are
      split together. `(h 64)` is a dimension of `h` runs of 64 elements. A number is
      the size of a dimension that is not split. A result that lacks a name is a sum
      over the dimension with that name. A group of devices may split any name: each
      device then calls the module with its part only. The import of the module checks
      the rule.
    - `weights`: the dimensions of parameters and buffers that may be split too, by name
      in the module: `{"up": "f _"}`, where `_` is not split. Parameters and buffers
      without an entry are not split.
    - `keep`: the names, separated by spaces, of dimensions that must not be split.
    - `flops`, `gradient_flops`: the number of floating-point operations of the module
      and of its gradient, as a number or a sum of products of names: `"2*b*s*64*f"`. By
      default the import of the module counts them.
    - `memory`, `gradient_memory`: the bytes that the module and its gradient need while
      they run, besides arguments and results, in the same notation and with the same
      default.

    Raises DistIRError if the rule is malformed, or if `module` is not a module.
    """
    declared = Declared(
        *(rule, tuple((weights or {}).items()), keep),
        *(_text(flops), _text(gradient_flops)),
        *(_text(memory), _text(gradient_memory)),
    )
    return mark(module, declared)


def local_map(
    function: Callable[..., Any],
    rule: str,
    *,
    weights: Mapping[str, str] | None = None,
    keep: str = "",
    flops: str | int | None = None,
    gradient_flops: str | int | None = None,
    memory: str | int | None = None,
    gradient_memory: str | int | None = None,
    sends: str | int | None = None,
) -> torch.nn.Module:
    """
    Returns an opaque module (see `opaque`) that contains its own communication over
    mesh axes, such as a dispatch of tokens to experts or a ring.

    ```python
    self.moe = distir.local_map(
        MyExperts(64),
        rule="b@e s d -> b@e s d",
        weights={"up": "_@e _ _", "down": "_@e _ _"},
        keep="d",
    )
    ```

    A dimension with `@axis` is split over that axis: every process passes and returns
    its part of the tensor. A tensor without the axis is whole on all processes of the
    axis. All other axes split dimensions as in `opaque`.

    `function`, a module or a function, takes the keyword argument `group`: the process
    group of the axes that the rule names, in the order of the processes' positions on
    these axes, or None for a single process. Its collectives must take part in
    autograd, such as the functions of `torch.distributed.nn.functional`. The gradient
    of a whole result is divided by the number of processes that hold the result.
    Gradients of whole inputs and parameters are summed over the axes. Both rules are
    what these collectives of autograd expect.

    `sends` is the number of bytes that all processes together send over the axes, as a
    number or a sum of products. Without `sends`, messages cost nothing in the
    simulator. Raises DistIRError if the rule is malformed or names no axis.
    """
    part = function if isinstance(function, torch.nn.Module) else _Function(function)
    declared = Declared(
        *(rule, tuple((weights or {}).items()), keep),
        *(_text(flops), _text(gradient_flops)),
        *(_text(memory), _text(gradient_memory), _text(sends)),
        communicates=True,
    )
    if not checked_rule(part, declared).axes:
        raise DistIRError(
            f"local_map: the rule {rule!r} names no mesh axis; write the axes over which "
            f"the function communicates behind the dimensions that they split, such as b@e, "
            f"or use distir.opaque for a function that does not communicate"
        )
    return mark(part, declared)


class _Function(torch.nn.Module):
    """Wraps a function of tensors as a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _text(work: str | int | None) -> str | None:
    return None if work is None else str(work)


def mark(module: Part, declared: Declared) -> Part:
    """
    Marks a module as opaque and returns the module. Raises DistIRError if `module` is
    not a module, or if the declaration contradicts the module's parameters.
    """
    if not isinstance(module, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DistIRError(
            f"opaque: a {type(module).__name__} is no module of PyTorch; wrap it into one"
        )
    rule = checked_rule(module, declared)
    if rule.axes and not declared.communicates:
        raise DistIRError(
            f"opaque: the rule {declared.rule!r} names the mesh axis {rule.axes[0]!r}, over "
            f"which a module communicates by itself; use distir.local_map for that"
        )
    object.__setattr__(module, _MARK, declared)
    return module


def checked_rule(module: torch.nn.Module, declared: Declared) -> OpaqueRule:
    """
    Returns the declared sharding rule of a module. Raises DistIRError if the rule is
    malformed or contradicts the module's parameters.
    """
    tensors = state_of(module)
    kind = type(module).__name__
    for name, _ in declared.weights:
        if name not in tensors:
            known = ", ".join(tensors) or "none"
            raise DistIRError(
                f"opaque: weights names {name!r}, which {kind} has not as a parameter or "
                f"buffer (it has {known})"
            )
    if "->" not in declared.rule:
        raise DistIRError(
            f"opaque: cannot read the rule {declared.rule!r} of {kind}; write its inputs and "
            f"results as b s d -> b s d"
        )
    return parse_opaque_rule(declared.full_rule(module, tensors))


_WHOLE = "_"
"""The name of a dimension of a parameter that is not split."""


def _dims(declared: str | None, shape: Sequence[int]) -> list[str]:
    """
    Returns the text of each dimension of a parameter of shape `shape` in the sharding
    rule. Dimensions without a declaration are not split. Raises DistIRError if the
    declaration has more or fewer dimensions than the parameter.
    """
    if declared is None:
        return list(map(str, shape))
    names = _names_of(declared)
    if len(names) != len(shape):
        raise DistIRError(
            f"opaque: weights has {len(names)} dimensions in {declared!r}, for a parameter "
            f"or buffer of shape {list(shape)}"
        )
    return [
        name.replace(_WHOLE, str(size), 1)
        if name.partition("@")[0].strip() == _WHOLE
        else name
        for name, size in zip(names, shape, strict=True)
    ]


def _names_of(dims: str) -> list[str]:
    inside = in_brackets(f"{dims} ->").partition("->")[0].strip()[1:-1]
    return [name.strip() for name in inside.split(",")] if inside.strip() else []


def declared_of(module: torch.nn.Module) -> Declared | None:
    """Returns the declaration of an opaque module, or None for any other module."""
    return vars(module).get(_MARK)


def opaque_parts(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """
    Returns the opaque modules inside `module` by name; a module with several names has
    its first name. Leaves out an opaque module inside of an opaque module.
    """
    found: dict[str, torch.nn.Module] = {}
    for name, part in module.named_modules():
        if declared_of(part) is None:
            continue
        if not any(n == "" or name.startswith(f"{n}.") for n in found):
            found[name] = part
    return found


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """
    Returns the parameters and buffers of a module by name; a tensor with several names
    has its first name.
    """
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
