"""What ranks hold, and have held, when a training of a package starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distir.launch.timing_rank import load_package


class _Largest(TorchDispatchMode):
    """
    Records the most elements of a tensor that is made, apart from those of files and from
    messages, which are bytes.
    """

    def __init__(self, known: set[int]):
        super().__init__()
        self.known, self.elements = known, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in _pytree.tree_leaves(result):
            if not isinstance(made, torch.Tensor) or made.dtype == torch.uint8:
                continue
            if made.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, made.numel())
        return result


def start(folder: str, weights: str | None, resume: str = "") -> dict[str, Any]:
    """
    Starts a training as a rank does, from weights, the checkpoints in `resume` or new
    values. Returns the `parts` that it holds of parameters, by name, the most elements of a
    tensor that it made (`largest`), and of a part that it holds (`own`).
    """
    program, runtime, _ = load_package(folder, "started")
    import started.stored_tensors as stored_tensors  # type: ignore[import-not-found]
    import started.tensors as tensors  # type: ignore[import-not-found]
    import started.training as training  # type: ignore[import-not-found]

    sources: list[Any] = []
    if weights is not None:
        is_stored = Path(weights).is_dir() and not list(
            Path(weights).glob("*.safetensors")
        )
        sources.append((stored_tensors if is_stored else tensors).load(weights))
    sources.append(tensors.load(Path(folder, "weights.safetensors")))
    inputs = {
        s.name: torch.zeros(s.shape, dtype=s.dtype)
        for s in program.ARGUMENTS
        if s.role in ("input", "label")
    }
    files = {
        value.untyped_storage().data_ptr()
        for value in (source for each in sources for source in each.values())
        if isinstance(value, torch.Tensor)
    }
    rank = dist.get_rank()
    body = runtime.body_of(program, rank, torch.device("cpu"))
    options = training.Options(2, 7, resume, resume="latest" if resume else "")
    with torch.inference_mode(), _Largest(files) as made:
        process = (rank, torch.device("cpu"), body)
        held = training._Training(program, process, [inputs, *sources], options).held
    roles = {spec.name: spec.role for spec in program.ARGUMENTS}
    return {
        "parts": {n: v.numpy() for n, v in held.items() if roles[n] == "parameter"},
        "largest": made.elements,
        "own": max(value.numel() for value in held.values()),
    }
