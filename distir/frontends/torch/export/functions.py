"""
Exports functions that PyTorch's newer exporter cannot write as ops of DistIR:
cumulative products, logarithms of determinants, the CTC loss, and the scan of selective
state spaces in Hugging Face's models.

While a module is exported, calls of these functions write nodes of DistIR's own domain.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from distir.errors import DistIRError
from distir.frontends.onnx.names import TRAIN_DOMAIN


def train_node(
    name: str,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    like: Tensor,
    **attributes: int,
) -> Tensor:
    """
    Adds a node that the importer reads as the op `name` of the `train` dialect
    (`train_nodes`). Returns the node's result, which has the shape `shape` and the type
    of `like`.
    """
    make: Callable[..., Tensor] = torch.onnx.ops.symbolic
    return make(
        f"{TRAIN_DOMAIN}::{name}",
        inputs,
        attributes,
        dtype=like.dtype,
        shape=shape,
        version=1,
    )


class FunctionsAsOps(TorchFunctionMode):
    """
    A context manager inside which exported calls of the functions in `_WRITTEN` become
    ops of DistIR. Raises DistIRError for a call for which DistIR has no op.
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


_MODELS, _FUNCTION = "transformers.models.", "mamba_selective_scan"


@contextlib.contextmanager
def scans_as_ops() -> Generator[None]:
    """
    A context manager inside which exported scans of selective state spaces become ops
    of `train`.

    Mamba and similar models call a function of their module for the scan. PyTorch can
    only compute the scan step by step, by several operators for each token of each
    layer. A scan stays unchanged if its last state is used, for example by a cache.
    """
    found = {
        module: getattr(module, _FUNCTION)
        for name, module in list(sys.modules.items())
        if name.startswith(_MODELS) and _FUNCTION in vars(module)
    }
    for module, original in found.items():
        setattr(module, _FUNCTION, _scan_as_op(original))
    try:
        yield
    finally:
        for module, original in found.items():
            setattr(module, _FUNCTION, original)


def _scan_as_op(original: Callable[..., Any]) -> Callable[..., Any]:
    """
    Returns a function that computes the same as `original` and exports as one node.
    """

    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **others: Any,
    ) -> Any:
        if return_last_state:
            return original(
                *(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, True),
                **others,
            )
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        if delta_softplus:
            dt = F.softplus(dt)
        kind = hidden_states.dtype
        operands = (hidden_states, dt, A, B.to(kind), C.to(kind))
        y = train_node("selective_scan", operands, hidden_states.shape, hidden_states)
        if D is not None:
            y = y + hidden_states * D[None, :, None]
        return y if z is None else y * F.silu(z)

    return scan
