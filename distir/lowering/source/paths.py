"""
Paths of the tensors and modules inside of a generated program, such as
`transformer.h.3.attn.weight`.

Paths follow the names of the source model, and are distinct and valid Python for any
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from distir.lowering.source.text import Names, sanitized

Path = tuple[str, ...]

MODULE_ATTRIBUTES = frozenset(
    (
        *("T_destination", "add_module", "apply", "bfloat16", "buffers"),
        *("call_super_init", "children", "compile", "cpu", "cuda", "double"),
        *("dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer"),
        *("get_extra_state", "get_parameter", "get_submodule", "half", "ipu"),
        *(
            "load_state_dict",
            "main",
            "modules",
            "mtia",
            "named_buffers",
            "named_children",
        ),
        *("named_modules", "named_parameters", "numbers", "parameters", "places"),
        *("arguments", "results", "register_backward_hook", "register_buffer"),
        *("register_forward_hook", "register_forward_pre_hook"),
        *("register_full_backward_hook", "register_full_backward_pre_hook"),
        *("register_load_state_dict_post_hook", "register_load_state_dict_pre_hook"),
        *("register_module", "register_parameter", "register_state_dict_post_hook"),
        *("register_state_dict_pre_hook", "requires_grad_", "set_extra_state"),
        *("set_submodule", "share_memory", "state_dict", "to", "to_empty", "train"),
        *("training", "type", "xpu", "zero_grad"),
    )
)
"""
Names that members of a module must not hide: attributes of `torch.nn.Module`, and those
that generated classes define.
"""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def components(name: str) -> Path:
    """Returns the parts of a path for a dotted name; at least one part."""
    parts = [_component(part) for part in name.split(".")]
    kept = tuple(part for part in parts if part)
    return kept or ("tensor",)


def _component(part: str) -> str:
    return part if _NUMBER.fullmatch(part) else sanitized(part)


def expression(path: Iterable[str], start: str = "self") -> str:
    """
    Returns the Python expression for a path, such as `self.transformer.h[3].attn`.
    """
    return start + "".join(f"[{p}]" if p.isdecimal() else f".{p}" for p in path)


def common_start(paths: Sequence[Path]) -> Path:
    """Returns the longest path that all `paths` begin with."""
    found: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return tuple(found)


@dataclass
class PathTree:
    """
    The paths below one module. Each part of a path is either a scope with further
    parts, or a leaf.
    """

    names: Names = field(default_factory=lambda: Names(MODULE_ATTRIBUTES))
    scopes: dict[str, tuple[str, PathTree]] = field(
        default_factory=lambda: dict[str, tuple[str, PathTree]]()
    )
    leaves: set[str] = field(default_factory=set[str])

    def add(self, path: Path) -> Path:
        """
        Adds a leaf and returns its path: `path` if it is free and valid, else a similar
        new path.
        """
        first, rest = path[0], path[1:]
        if not rest:
            name = self._fresh(first)
            self.leaves.add(name)
            return (name,)
        if first in self.leaves:  # a state of a parameter, `weight.exp_avg`
            return self.add((sanitized(f"{first}_{rest[0]}"), *rest[1:]))
        if first not in self.scopes:
            self.scopes[first] = self._fresh(first), PathTree()
        name, inner = self.scopes[first]
        return (name, *inner.add(rest))

    def unused(self, scope: str) -> str:
        """
        Returns the name of a scope that has no parts yet: `scope` if it is free, else
        `scope` with a number.
        """
        numbered = (f"{scope}_{i}" for i in count(2))
        taken = {*self.scopes, *self.leaves}
        return next(each for each in chain([scope], numbered) if each not in taken)

    def _fresh(self, part: str) -> str:
        if not part.isdecimal():
            return self.names.fresh(part, "tensor")
        taken = {name for name, _ in self.scopes.values()} | self.leaves
        return self.names.fresh(f"v{part}", "v") if part in taken else part

    def size(self, path: Path) -> int:
        """
        Returns the number of parts of the scope at `path`, or 0 if there is no such
        scope. `path` consists of names that `add` has returned.
        """
        tree = self
        for part in path:
            found = [inner for name, inner in tree.scopes.values() if name == part]
            if not found:
                return 0
            tree = found[0]
        return len(tree.scopes) + len(tree.leaves)
