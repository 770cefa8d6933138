"""
Trainers of other libraries for parallel modules: `Accelerator` (Accelerate), `Trainer`
and `TrainerMixin` (transformers), and `DistIRStrategy` (Lightning). The first use of a
class imports its library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distir.errors import DistIRError

if TYPE_CHECKING:
    from distir.trainers.accelerator import Accelerator as Accelerator
    from distir.trainers.hugging_face import Trainer as Trainer
    from distir.trainers.hugging_face import TrainerMixin as TrainerMixin
    from distir.trainers.strategy import DistIRStrategy as DistIRStrategy

_NAMES = {
    "Accelerator": ("distir.trainers.accelerator", "accelerate"),
    "Trainer": ("distir.trainers.hugging_face", "transformers[torch]"),
    "TrainerMixin": ("distir.trainers.hugging_face", "transformers[torch]"),
    "DistIRStrategy": ("distir.trainers.strategy", "lightning"),
}
"""The module that defines each public name, and the package that it needs."""


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'distir.trainers' has no attribute {name!r}")
    module, package = _NAMES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise DistIRError(
            f"distir.trainers.{name} needs a package that is not installed ({error.name}): "
            f"pip install {package!r}"
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
