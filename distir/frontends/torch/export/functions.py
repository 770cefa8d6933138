"""
Functions of PyTorch that its newer exporter cannot write, as ops of DistIR: running products,
determinants' logarithms and the CTC loss.

While a module is exported, calls of these functions write nodes of a domain of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from distir.errors import DistIRError
from distir.frontends.onnx.names import TRAIN_DOMAIN
from distir.frontends.torch.export.nodes import train_node


class FunctionsAsOps(TorchFunctionMode):
    """
    A context manager inside which exported calls of these functions become ops of DistIR.
    Raises DistIRError for a call that no op stands for.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _WRITTEN.get(func, func)(*args, **(kwargs or {}))


def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None:
        is_integer = not input.dtype.is_floating_point and not input.dtype.is_complex
        dtype = torch.int64 if is_integer else input.dtype
    x = input.to(dtype)
    if x.dim() == 0 or dtype.is_complex:
        return torch.ops.aten.cumprod.default(x, dim)
    axis = torch.full((), dim, dtype=torch.int64)
    return train_node("cumprod", (x, axis), x.shape, x)


def _slogdet(input: Tensor) -> Any:
    make: Callable[..., Sequence[Tensor]] = torch.onnx.ops.symbolic_multi_out
    found = make(
        f"{TRAIN_DOMAIN}::slogdet",
        (input,),
        {},
        dtypes=(input.dtype, input.dtype),
        shapes=(input.shape[:-2], input.shape[:-2]),
        version=1,
    )
    return torch.return_types.linalg_slogdet(tuple(found))  # pyright: ignore


def _logdet(input: Tensor) -> Tensor:
    sign, logarithm = _slogdet(input)
    return torch.where(sign < 0, math.nan, logarithm)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    is_batch = log_probs.dim() == 3
    if not is_batch:
        log_probs, targets = log_probs[:, None], targets[None]
    if targets.dim() != 2:
        raise DistIRError(
            "ctc_loss of targets that are put together in one dimension has shapes that "
            "follow from values; give targets [samples, labels], filled up to one length"
        )
    samples = log_probs.shape[1]
    steps, labels = (
        torch.as_tensor(lengths, dtype=torch.int64).reshape(samples)
        for lengths in (input_lengths, target_lengths)
    )
    losses = train_node(
        "ctc_loss",
        (log_probs, targets.to(torch.int64), steps, labels),
        (samples,),
        log_probs,
        blank=blank,
        zero_infinity=int(zero_infinity),
    )
    if reduction == "mean":
        return (losses / labels.clamp(min=1).to(losses.dtype)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if is_batch else losses[0]


_WRITTEN: dict[Any, Callable[..., Any]] = {
    torch.cumprod: _cumprod,
    Tensor.cumprod: _cumprod,
    torch.slogdet: _slogdet,
    Tensor.slogdet: _slogdet,
    torch.linalg.slogdet: _slogdet,
    torch.logdet: _logdet,
    Tensor.logdet: _logdet,
    F.ctc_loss: _ctc_loss,
}
