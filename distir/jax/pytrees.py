"""
Reads the pytrees of a function's arguments and results: the names of their leaves, and
the results that replace arguments in the next step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from distir.frontends.stablehlo.roles import Kind, Leaves
from distir.program.naming import unique_names


def leaves_of(tree: Any, prefixes: Sequence[str] | str) -> Leaves:
    """
    Returns the leaves of a tree in JAX's order, with dotted names. `prefixes` is the
    first part of all names, or one first part for each child of the tuple `tree`.
    """
    names: list[str] = []
    kinds: list[Kind] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(prefixes, str):
            first, rest = prefixes, path
        else:
            child: int = path[0].idx
            first, rest = prefixes[child], path[1:]
        dotted = jax.tree_util.keystr(rest, simple=True, separator=".")
        names.append(f"{first}.{dotted}" if dotted else first)
        kinds.append(leaf_kind(leaf))
    return Leaves(unique_names(names), kinds)


def leaf_kind(leaf: Any) -> Kind:
    """
    Returns the shape and the name of the element type of an array, or of a
    `jax.ShapeDtypeStruct`.
    """
    aval: Any = jax.api_util.shaped_abstractify(leaf)
    return tuple(aval.shape), str(aval.dtype)


def argument_prefixes(function: Callable[..., Any], count: int) -> list[str]:
    """
    Returns names for the first `count` arguments of a function: the names of the
    function's parameters, or `arg<i>` for an argument without a name, as for `*args`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [
        p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return [plain[i] if i < len(plain) else f"arg{i}" for i in range(count)]


def updates(
    arguments: Sequence[Any], result: Any, donated: Sequence[int]
) -> dict[int, int]:
    """
    Returns the leaf of an argument that each leaf of the result replaces in the next
    step, by their indices.

    An argument, or a part of it, is replaced if the result has a tree with the same
    structure, shapes and element types. A single array is replaced only if the position
    of its argument is in `donated`.
    """
    trees: dict[Any, list[int]] = {}
    _collect(result, 0, trees)
    found: dict[int, int] = {}
    start = 0
    for position, argument in enumerate(arguments):
        _match(argument, start, trees, position in donated, found)
        start += len(jax.tree_util.tree_leaves(argument))
    return found


def _form(tree: Any) -> Any:
    """
    Returns the structure of a tree, with the shapes and element types of its leaves.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, tuple(leaf_kind(leaf) for leaf in leaves)


def _children(tree: Any) -> list[Any]:
    """Returns the children of a tree, or [] for a leaf."""
    if jax.tree_util.all_leaves([tree]):
        return []
    leaves = jax.tree_util.default_registry.flatten_one_level(tree)
    return [] if leaves is None else list(leaves[0])


def _collect(tree: Any, start: int, trees: dict[Any, list[int]]) -> None:
    """
    Adds a tree and all its subtrees to `trees`, which maps each form to the indices of
    first leaves. `start` is the index of the first leaf of `tree`.
    """
    count = len(jax.tree_util.tree_leaves(tree))
    if not count:
        return
    trees.setdefault(_form(tree), []).append(start)
    for child in _children(tree):
        _collect(child, start, trees)
        start += len(jax.tree_util.tree_leaves(child))


def _match(
    tree: Any,
    start: int,
    trees: dict[Any, list[int]],
    is_donated: bool,
    found: dict[int, int],
) -> None:
    """
    Adds to `found` the leaves of `tree` that a result replaces. `tree` is an argument
    or a part of an argument, and `start` is the index of its first leaf.
    """
    count = len(jax.tree_util.tree_leaves(tree))
    if not count:
        return
    is_leaf = jax.tree_util.all_leaves([tree])
    if not is_leaf or is_donated:
        places = trees.get(_form(tree), [])
        for place in places:
            if not any(place + i in found for i in range(count)):
                found.update({place + i: start + i for i in range(count)})
                return
    for child in _children(tree):
        _match(child, start, trees, is_donated, found)
        start += len(jax.tree_util.tree_leaves(child))
