"""
Finds effects of Python code that are specific to one call of a module, and the user's
line that causes them. A program repeats the effect of that one call in every call.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils.weak import WeakIdKeyDictionary

from distir.frontends.torch.modules.state import python_random_state

if TYPE_CHECKING:
    from torch import Tensor, nn


_READS = frozenset(
    (
        *(
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "__complex__",
            "__contains__",
        ),
        *("item", "tolist", "numpy", "__array__", "is_nonzero", "equal", "allclose"),
    )
)
"""Functions of tensors that give their elements to Python."""

_DRAWS = frozenset(
    (
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like"),
        *("randperm", "bernoulli", "normal", "multinomial", "poisson"),
    )
)
_SIZES = frozenset(("size", "numel", "dim", "__len__"))
"""Functions that only return facts about a shape. In a trace they return tensors."""
_CHOOSE_SIZES = frozenset(
    ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount")
)
"""Functions whose results have a size that depends on the values of their operands."""


class ValueReads(TorchFunctionMode):
    """
    A context manager that records in `lines` the lines in which Python reads elements
    of tensors that depend on `inputs` or random numbers. A trace does not contain what
    Python does with these elements. Reads of sizes that depend on such elements are
    recorded too (`if rows.numel() == 0`). `inputs` are the inputs and parameters.
    """

    def __init__(self, inputs: Sequence[Tensor], lines: dict[str, None]) -> None:
        super().__init__()
        self.lines = lines
        self._depending: Any = WeakIdKeyDictionary()
        self._sized: Any = WeakIdKeyDictionary()  # their sizes depend on elements
        for tensor in inputs:
            self._depending[tensor] = True

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        operands = [
            x
            for x in _pytree.tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        ]
        depends = name in _DRAWS or any(x in self._depending for x in operands)
        is_sized = any(x in self._sized for x in operands)
        if (depends and name in _READS) or (is_sized and name == "__len__"):
            self.lines[calling_line()] = None
        result = func(*args, **(kwargs or {}))
        if name in _SIZES or isinstance(result, torch.Size):
            # In a trace these are tensors, which may be read later.
            found = result if isinstance(result, tuple) else (result,)
            self._note(found if is_sized else (), self._depending)
        elif depends:
            leaves: list[Any] = _pytree.tree_leaves(result)
            written = operands[:1] if name.endswith("_") else []  # also __setitem__
            self._note((*leaves, *written), self._depending)
            if is_sized or name in _CHOOSE_SIZES or _selects(name, args, operands):
                self._note(leaves, self._sized)
        return result

    @staticmethod
    def _note(values: Iterable[Any], noted: Any) -> None:
        for x in values:
            if isinstance(x, torch.Tensor):
                noted[x] = True


def _selects(name: str, args: Sequence[Any], operands: Sequence[Tensor]) -> bool:
    """Whether the function called `name` selects elements by a Boolean tensor."""
    if name == "where":
        return len(args) == 1
    masks = operands[1:] if name == "__getitem__" else ()
    return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)


def line_that_draws(run: Callable[[], object]) -> str:
    """
    Runs `run`, and returns the first line of users' code that draws random numbers of
    Python or NumPy. Returns "" if there is no such line. Errors of `run` are ignored.
    """
    state = python_random_state()
    found = ""
    last = ("", 0)

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal last, found
        path = frame.f_code.co_filename
        if found or not is_users(path):
            return None
        look(frame)
        return each_line

    def each_line(frame: FrameType, event: str, arg: Any) -> Any:
        look(frame)
        return each_line

    def look(frame: FrameType) -> None:
        nonlocal last, found
        if not found and python_random_state() != state:
            found = line_of(*last)
        last = (frame.f_code.co_filename, frame.f_lineno)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    return found or (line_of(*last) if python_random_state() != state else "")


class Assignments:
    """
    Records the numbers and texts that a module assigns to its attributes. Counts, for
    each attribute, the calls in which the attribute changed, and keeps the line of its
    first assignment. Keys are the paths of the attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.changes: dict[str, int] = {}
        self.lines: dict[str, str] = {}
        self._names = {id(part): name for name, part in module.named_modules()}

    @contextlib.contextmanager
    def recorded(self) -> Generator[None]:
        """
        A context manager that records the assignments inside it as one call of the
        module.
        """
        original: Any = torch.nn.Module.__setattr__
        changed: set[str] = set()

        def assign(part: nn.Module, name: str, value: Any) -> None:
            own = self._names.get(id(part))
            if own is not None:
                path = f"{own}.{name}" if own else name
                before = vars(part).get(name)
                if isinstance(value, int | float | str) and before != value:
                    changed.add(path)
                self.lines.setdefault(path, calling_line())
            original(part, name, value)

        torch.nn.Module.__setattr__ = assign  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            torch.nn.Module.__setattr__ = original
            for path in changed:
                self.changes[path] = self.changes.get(path, 0) + 1


class BufferWrites(TorchFunctionMode):
    """
    Records, for each buffer of a module, the first line that writes to the buffer in
    place. Keys are the names of buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.lines: dict[str, str] = {}
        self._names: Any = WeakIdKeyDictionary()
        for name, buffer in module.named_buffers():
            self._names[buffer] = name

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "").endswith("_") and args:
            name = (
                self._names.get(args[0]) if isinstance(args[0], torch.Tensor) else None
            )
            if name is not None:
                self.lines.setdefault(name, calling_line())
        return func(*args, **(kwargs or {}))


_NOT_USERS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, os.path.join(__file__, *[".."] * 3), os.__file__)
)
"""
The folders of PyTorch, DistIR and Python's own modules. Installed packages lie in one
of them.
"""
_PACKAGES = ("site-packages", "dist-packages")


def calling_line() -> str:
    """
    Returns the innermost line of users' code that is running inside a call from DistIR,
    as `line_of` formats it. If no users' code is running, returns the innermost line
    outside of DistIR.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    innermost = frame
    while frame is not None and not _is_ours(frame.f_code.co_filename):
        if is_users(frame.f_code.co_filename):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    if innermost is None:
        return ""
    return line_of(innermost.f_code.co_filename, innermost.f_lineno)


def _is_ours(path: str) -> bool:
    return os.path.abspath(path).startswith(_NOT_USERS[1])


def is_users(path: str) -> bool:
    """Whether a file belongs neither to Python, nor to PyTorch, nor to DistIR."""
    if path.startswith("<"):
        return False
    path = os.path.abspath(path)
    torchs, ours, pythons = _NOT_USERS
    if path.startswith((torchs, ours)):
        return False
    inside = path.startswith(pythons)
    return not inside or any(f"{os.sep}{p}{os.sep}" in path for p in _PACKAGES)


def line_of(path: str, number: int) -> str:
    """Returns a line in the format of error messages: `FILE:NUMBER (`text`)`."""
    text = linecache.getline(path, number).strip()
    return f"{path}:{number}" + (f" (`{text}`)" if text else "")
