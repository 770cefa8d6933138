"""
Makes modules for `distir import` from code: from a function in a Python file, or from
the configuration of a Hugging Face model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from distir.errors import DistIRError, listed, one_of

if TYPE_CHECKING:
    import torch

TASKS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
}
"""The class of transformers that makes models for a task, by the name of the task."""


_LARGE = 1 << 22
"""
The number of elements from which on a new tensor counts as a parameter. Buffers, which
must have values, are smaller in models that are made from a configuration.
"""


@dataclass(frozen=True)
class ModuleSource:
    """A module with example inputs."""

    module: torch.nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def from_function(path: Path, name: str) -> ModuleSource:
    """
    Calls the function `name` of a Python file and returns its result, `(module, args)`
    or `(module, args, kwargs)`. Raises DistIRError if the function is missing or
    returns anything else, or if the file or the function raises an error.
    """
    import torch

    code = _loaded(path)
    function = getattr(code, name, None)
    if not callable(function):
        own = [
            n
            for n, v in vars(code).items()
            if callable(v) and getattr(v, "__module__", None) == code.__name__
        ]
        raise DistIRError(
            f"{path} has no function {name!r}; it has {listed(own) or 'none'}"
        )
    with _failures_of(f"{path}:{name}"):
        found: Any = function()
    parts: tuple[Any, ...] = found if isinstance(found, tuple) else ()
    if (
        len(parts) not in (2, 3)
        or not isinstance(parts[0], torch.nn.Module)
        or not isinstance(parts[1], tuple | list)
        or not isinstance(parts[-1] if len(parts) == 3 else {}, Mapping)
    ):
        what = type(found).__name__
        if parts:
            what += f" of {', '.join(type(part).__name__ for part in parts)}"
        raise DistIRError(
            f"{path}:{name} returns {what}; it has to return (module, args) or (module, "
            f"args, kwargs): a torch.nn.Module, a tuple of example inputs and a "
            f"dictionary of those that are given by name"
        )
    return ModuleSource(*parts)


@contextlib.contextmanager
def _failures_of(code: str) -> Generator[None]:
    """
    A context manager that turns errors of users' code into a DistIRError. `code` names
    the code in the error's message.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise DistIRError(
            f"{code} raises {type(error).__name__}: {error}; DISTIR_DEBUG=1 shows where"
        ) from error


def _loaded(path: Path) -> ModuleType:
    """
    Imports a Python file, which may import modules from its own folder, and returns the
    module. Raises DistIRError if the import fails.
    """
    if not path.is_file():
        raise DistIRError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"distir_source_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DistIRError(f"{path} is no Python file; its name has to end in .py")
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with _failures_of(str(path)):
            spec.loader.exec_module(code)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return code


def from_config(
    path: Path,
    task: str,
    batch: int,
    seq: int | None,
    *,
    target_seq: int | None = None,
    meta: bool,
    length_option: str = "--seq",
) -> ModuleSource:
    """
    Makes the Hugging Face model that a `config.json` describes, for a task, with
    example inputs.

    The inputs are `batch` sequences of `seq` tokens, or images of the configuration's
    size. The decoder of a sequence-to-sequence model gets `target_seq` tokens, by
    default `seq`. Nothing is downloaded: parameters have initial values, or no values
    with `meta`. `length_option` is the name, in messages, of the option that sets
    `seq`. Raises DistIRError if the file cannot be read, the model does not have the
    task, or a size is missing or not allowed.
    """
    one_of("task", task, tuple(TASKS))
    try:
        import transformers
    except ImportError:
        raise DistIRError(
            "--transformers needs the package transformers; pip install transformers"
        ) from None
    import torch

    config = _config(path)
    maker: Any = getattr(transformers, TASKS[task])
    if type(config) not in maker._model_mapping:
        fitting = [
            name
            for name, other in TASKS.items()
            if type(config) in getattr(transformers, other)._model_mapping
        ]
        raise DistIRError(
            f"{path} describes a model of type {config.model_type!r}, which transformers "
            f"has not for the task {task!r}; it has it for {listed(fitting) or 'no task here'}"
        )
    example = _example(path, config, task, batch, seq, target_seq, length_option)
    config.use_cache = False  # A cache of keys and values is no tensor.
    with (
        _parameters_on_meta() if meta else contextlib.nullcontext(),
        torch.random.fork_rng(devices=[]),
        _failures_of(f"transformers, given {path},"),
    ):
        torch.manual_seed(0)
        module: Any = maker.from_config(config)
    return ModuleSource(module, (), example)


def _config(path: Path) -> Any:
    """
    Returns the configuration in a file. Raises DistIRError if transformers cannot read
    the file.
    """
    from transformers import CONFIG_MAPPING

    try:
        content: Any = json.loads(path.read_text())
    except OSError as error:
        raise DistIRError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DistIRError(f"{path} is not JSON: {error}") from error
    kind = content.get("model_type") if isinstance(content, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    known: Any = CONFIG_MAPPING
    if not isinstance(kind, str) or kind not in known:
        raise DistIRError(
            f"{path} is no configuration of a model that transformers knows: its "
            f'"model_type" is {kind!r}; give the config.json of a model'
        )
    try:
        return known[kind].from_dict(content)
    except Exception as error:  # configurations check themselves, each in its own way
        raise DistIRError(
            f"{path} is no valid configuration of a {kind} model: {error}"
        ) from error


def _example(
    path: Path,
    config: Any,
    task: str,
    batch: int,
    seq: int | None,
    target_seq: int | None,
    length_option: str,
) -> dict[str, torch.Tensor]:
    """
    Returns example inputs of a model by name. Raises DistIRError if a length is missing
    or not allowed for the model.
    """
    import torch

    if target_seq is not None and task != "seq2seq-lm":
        raise DistIRError(
            f"--target-seq is what the decoder gets for --task seq2seq-lm, not for {task}"
        )
    if task == "image-classification":
        size: Any = getattr(config, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.zeros(batch, channels, height, width)}
    if seq is None:
        raise DistIRError(
            f"--task {task} needs the length of the sequences; give --seq"
        )
    lengths = {"input_ids": seq}
    if task == "seq2seq-lm":
        lengths["decoder_input_ids"] = seq if target_seq is None else target_seq
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and max(lengths.values()) > longest:
        option = length_option if seq > longest else "--target-seq"
        raise DistIRError(
            f"{option} {max(lengths.values())} is longer than the {longest} positions of "
            f"the model (max_position_embeddings in {path}); give a shorter one"
        )
    return {
        name: torch.zeros(batch, length, dtype=torch.int64)
        for name, length in lengths.items()
    }


@contextlib.contextmanager
def _parameters_on_meta() -> Generator[None]:
    """
    A context manager inside which new parameters of modules have no values and take no
    memory. Large parameters are never allocated. Buffers are computed, because a
    checkpoint may lack them.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    makers: set[Any] = {
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
    }

    class LargeOnMeta(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            if func in makers and given.get("device") is None:
                made = func(*args, **{**given, "device": "meta"})
                if made.numel() >= _LARGE:
                    return made
            return func(*args, **given)

    register = torch.nn.Module.register_parameter

    def without_value(
        self: torch.nn.Module, name: str, param: torch.nn.Parameter | None
    ) -> None:
        if param is not None and not param.is_meta:
            param = torch.nn.Parameter(param.to("meta"), param.requires_grad)
        register(self, name, param)

    torch.nn.Module.register_parameter = without_value
    try:
        with LargeOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = register
