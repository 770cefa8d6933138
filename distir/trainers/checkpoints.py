"""
Checkpoints of a training: a folder of PyTorch's distributed checkpoints. Each rank
writes and reads its own parts. A checkpoint can be read under another plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from distir.errors import DistIRError

_OPTIONS = StateDictOptions(strict=False)
"""
Not strict, because a rank of a pipeline has only the parameters of its own stages.
"""


def save_states(
    folder: str | Path,
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """
    Writes the parameters and buffers of `models`, and the states of their `optimizers`,
    to `folder`. Each optimizer must update parameters of one module only. Every rank
    must call this function.
    """
    content: dict[str, Any] = {}
    for index, model in enumerate(models):
        content[f"model{index}"] = get_model_state_dict(model, options=_OPTIONS)
    for index, optimizer in enumerate(optimizers):
        content[f"optimizer{index}"] = _states(models, optimizer)
    state_dict_saver.save(
        content, storage_writer=FileSystemWriter(folder, overwrite=True)
    )


def load_values(folder: str | Path, models: Sequence[nn.Module], who: str) -> None:
    """
    Reads the parameters and buffers of `models` from a folder that `save_states` wrote.
    Every rank must call this function. `who` is the class that messages name. Raises
    DistIRError if `folder` holds no such checkpoint.
    """
    _check(folder, who)
    content: dict[str, Any] = {
        f"model{index}": get_model_state_dict(model, options=_OPTIONS)
        for index, model in enumerate(models)
    }
    state_dict_loader.load(content, checkpoint_id=folder)
    for index, model in enumerate(models):
        set_model_state_dict(model, content[f"model{index}"], options=_OPTIONS)


def load_states(
    folder: str | Path,
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    who: str,
) -> None:
    """
    Reads the states of `optimizers` from a folder that `save_states` wrote. Every rank
    must call this function. `who` is the class that messages name. Raises DistIRError
    if `folder` holds no such checkpoint.
    """
    _check(folder, who)
    content: dict[str, Any] = {
        f"optimizer{index}": _states(models, optimizer)
        for index, optimizer in enumerate(optimizers)
    }
    state_dict_loader.load(content, checkpoint_id=folder)
    for index, optimizer in enumerate(optimizers):
        set_optimizer_state_dict(
            _owner(models, optimizer),
            optimizer,
            content[f"optimizer{index}"],
            options=_OPTIONS,
        )


def _states(
    models: Sequence[nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    owner = _owner(models, optimizer)
    return get_optimizer_state_dict(owner, optimizer, options=_OPTIONS)


def _owner(models: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> nn.Module:
    """
    Returns the module whose parameters `optimizer` updates. Raises DistIRError if these
    parameters belong to several modules.
    """
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in models:
        if own <= {id(p) for p in model.parameters()}:
            return model
    raise DistIRError(
        f"{type(optimizer).__name__} updates parameters that are not of one prepared module, so "
        f"that its states have no names in a checkpoint; make an optimizer for each module"
    )


def _check(folder: str | Path, who: str) -> None:
    if not Path(folder, ".metadata").exists():
        raise DistIRError(
            f"{who}: {folder} holds no checkpoint of a parallel module; what another trainer "
            f"wrote, or this one with save_only_model, is loaded before distir.parallelize "
            f"(from_pretrained)"
        )
