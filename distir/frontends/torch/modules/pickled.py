"""
Pickles modules as keys for comparison, to find modules that compute the same function.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import marshal
import pickle
import sys
from typing import Any

import torch

from distir.frontends.torch.modules.meta import has_no_value

_NOT_OF_FORWARD = ("GenerationConfig",)
"""
The names of classes whose objects are left out: modules hold such objects, but their
forward does not use them. The content of a `GenerationConfig` differs in every process.
"""


class ContentPickler(pickle.Pickler):
    """
    Pickles everything that determines the computation of a module, including the code
    of functions. Tensors in `parameters` (by `id`) are pickled with shape, type and
    `requires_grad`, but without values.
    """

    def __init__(self, file: io.BytesIO, parameters: set[int]):
        super().__init__(file, protocol=4)
        self._parameters = parameters

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, set | frozenset):
            elements: Any = obj
            # Their own order depends on the process.
            return ("set", sorted(map(self._content, elements)))
        if type(obj).__name__ in _NOT_OF_FORWARD:
            return type(obj).__name__
        if isinstance(obj, torch.Tensor):
            what = (tuple(obj.shape), str(obj.dtype), obj.requires_grad)
            if id(obj) in self._parameters or has_no_value(obj):
                return ("tensor", what)
            data = obj.detach().cpu().contiguous().view(-1).view(torch.uint8)
            return ("tensor", what, hashlib.sha256(data.numpy().tobytes()).hexdigest())
        return None

    def _content(self, element: Any) -> bytes:
        file = io.BytesIO()
        ContentPickler(file, self._parameters).dump(element)
        return file.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        if inspect.isfunction(obj) and obj is not _known:
            if not has_file(obj.__module__):
                raise pickle.PicklingError(f"the code of {obj} is in no file")
            held = [cell.cell_contents for cell in obj.__closure__ or ()]
            # Later formats tell whether others refer to a constant too.
            code = marshal.dumps(obj.__code__, 2)
            return _known, (code, obj.__defaults__, obj.__kwdefaults__, held)
        return NotImplemented


def _known(*parts: Any) -> None:
    """
    A placeholder in a pickle for the function that would restore a pickled function. It
    is never called.
    """


def has_file(module: str) -> bool:
    """
    Whether the loaded Python module `module` comes from a file or is built into Python.
    """
    loaded = getattr(sys.modules.get(module), "__file__", None)
    return loaded is not None or module in sys.builtin_module_names
