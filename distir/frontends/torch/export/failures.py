"""
Turns messages of PyTorch's exporters, and what they fail to report, into sentences for
users.
"""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from distir.errors import DistIRError, listed
from distir.frontends.torch.trust import CUSTOM_BACKWARD, way_out

if TYPE_CHECKING:
    import torch

    from distir.frontends.torch.export.gradients import OwnBackward

_KNOWN_REASONS = {
    "Grouped matmul": (
        "it runs grouped_mm, which has no ONNX function",
        "write experts as those of transformers, which are imported whole, or as batches of "
        "matrix products",
    ),
    "DynamicCache": (
        "it returns a cache of keys and values, which is no tensor",
        "give it use_cache=False, as an input or in its config",
    ),
}
"""By a word of PyTorch's message: the problem, and the remedy."""


_NODE = re.compile(r"translating node %(\w+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)[^\n]*\n\s*([^\n]*)')


class UnwrittenOperation(Exception):
    """An operation of a module that PyTorch's exporter cannot write, as a sentence."""


def unwritten_operation(
    error: BaseException, programs: Sequence[torch.export.ExportedProgram]
) -> UnwrittenOperation | None:
    """
    Names the user's operation, file and line, for the exporter's error about a node of one of
    these programs; None for other errors. An operation of the user may consist of others:
    `trace` of `sum`.
    """
    found = None
    cause: BaseException | None = error
    while cause is not None and found is None:
        found = _NODE.search(str(cause))
        cause = cause.__cause__
    if found is None:
        return None
    for program in programs:
        for node in program.graph.nodes:
            if node.name == found[1]:
                return UnwrittenOperation(_said(node))
    return None


def _said(node: torch.fx.Node) -> str:
    """Returns the operation of a node, and the user's line that asks for it."""
    target = node.meta.get("original_aten") or node.target
    name = str(target).removeprefix("aten.").partition(".")[0].strip("_")
    text = f"PyTorch's exporter cannot write the operation {name!r}"
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if "site-packages" not in f[0]] or frames
    if own:
        file, line, code = own[-1]
        text += f" of {file}, line {line}: `{code.strip()}`"
    return text


@contextlib.contextmanager
def quiet(name: str) -> Generator[None]:
    """
    A context manager that silences a logger of PyTorch, as our errors report what goes
    wrong.
    """
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def reason(error: BaseException, advice: str) -> str:
    """
    Returns the problem and the remedy, for an error of PyTorch's exporters. These raise
    errors of every kind, their own and the model's; the first of a chain names the problem.
    `advice` is for unknown errors.
    """
    named = error if isinstance(error, UnwrittenOperation) else None
    while error.__cause__ is not None:
        error = error.__cause__
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    for word, (what, known_advice) in _KNOWN_REASONS.items():
        if word in first:
            return f"{what}; {known_advice}"
    message = first if named is None else str(named)
    return f"{message}; {advice}"


def tell_of_backwards(
    module: torch.nn.Module, backwards: Sequence[OwnBackward], *, refuse: bool
) -> None:
    """
    Refuses functions with a backward of their own, which the exporters lost, with a
    DistIRError, or warns of them.
    """
    if not backwards:
        return
    where = [f"at {own.line}" for own in backwards if own.line]
    message = (
        f"{type(module).__name__} runs {listed([own.name for own in backwards])}, with a "
        f"backward of its own{f' ({listed(where)})' if where else ''} that is not known to be "
        f"the derivative of its forward, and PyTorch's exporters do not write it: the "
        f"gradient would be the derivative of the forward. Where that is something else (a "
        f"straight-through estimator), write it with detach() instead"
    )
    if refuse:
        raise DistIRError(f"{message}, {way_out(CUSTOM_BACKWARD)}")
    warnings.warn(message, stacklevel=6)


def module_that_failed(module: torch.nn.Module, error: BaseException) -> str:
    """
    Returns the beginning of a sentence that names the innermost part of a module that ran
    when an error was raised; "" if that is the module itself or not known.
    """
    names = {id(part): name for name, part in module.named_modules()}
    found = ""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = names.get(id(frame.f_locals.get("self")), "")
        if name:
            part = type(frame.f_locals["self"]).__name__
            found = f"in its part {name!r} ({part}): "
    return found
