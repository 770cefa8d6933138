"""
Turns errors of PyTorch's exporters, and losses that they do not report, into messages
for users.
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
"""The problem and the remedy, by a word in PyTorch's message."""


_NODE = re.compile(r"translating node %(\w+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)[^\n]*\n\s*([^\n]*)')


class UnwrittenOperation(Exception):
    """
    Raised if PyTorch's exporter cannot write an operation of a module. The message is a
    sentence.
    """


def unwritten_operation(
    error: BaseException, programs: Sequence[torch.export.ExportedProgram]
) -> UnwrittenOperation | None:
    """
    Returns an error that names the user's operation, file and line, if `error` is the
    exporter's error about a node of one of `programs`. Returns None for any other
    error. The exporter may fail on a part of the user's operation, such as `sum` in
    `trace`.
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
    """
    Returns a sentence that names the operation of a node and the user's line that calls
    the operation.
    """
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
    A context manager that silences the PyTorch logger `name`, because DistIR's own
    errors report the problems.
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
    Returns the problem and the remedy for an error of PyTorch's exporters. The
    exporters raise errors of every kind; the first error in the chain of causes names
    the problem. `advice` is the remedy for unknown errors.
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
    Raises DistIRError, or only warns without `refuse`, if functions with a custom
    backward function ran, because the exporters lose custom backward functions.
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
    Returns the beginning of a sentence that names the innermost part of the module that
    was running when `error` was raised. Returns "" if this part is the module itself or
    is unknown.
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
