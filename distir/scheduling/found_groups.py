"""Groups of ops that compute a pattern, for rewrites by a schedule script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, StringAttr, f32
from xdsl.ir import Attribute, SSAValue

from distir.dialects.schedule import (
    DecomposeOp,
    FuseOp,
    KernelOp,
    RecomputeOp,
    ReplaceOp,
)
from distir.scheduling.kernel import Kernel
from distir.scheduling.knobs import knob_attribute
from distir.scheduling.recording import Recording, text_attribute


class FoundGroups:
    """
    Groups of ops that compute a pattern, as `Modules.find` returns them. All methods
    rewrite the groups and consume them: the object cannot be used again afterwards.
    """

    def __init__(self, recording: Recording, handle: SSAValue):
        self._recording = recording
        self._handle = handle

    def fuse(self, name: str, backend: Literal["eager", "inductor"] = "eager") -> None:
        """
        Runs each group as one function called `name`. With the backend "inductor",
        PyTorch's compiler makes one kernel of the function; with "eager", its ops run
        one by one: `s["h.*"].find(lambda x, b: F.gelu(x + b)).fuse("bias_gelu")`.
        """
        attributes = {
            "symbol": text_attribute(name),
            "backend": text_attribute(backend),
        }
        self._recording.add(
            FuseOp.create(operands=[self._handle], attributes=attributes)
        )

    def replace(self, other: Onnx | Kernel) -> None:
        """
        Replaces each group by an ONNX operator or by a user's kernel.

        An operator must compute the same as the group: `s.find(lambda x: x *
        torch.sigmoid(x)).replace(onnx("Swish"))`. `distir schedule --verify` compares a
        kernel with the group: `.replace(Kernel("swish", "my_kernels:swish"))`.
        """
        attributes: dict[str, Attribute]
        if isinstance(other, Kernel):
            kind, attributes = KernelOp, dict(other.attributes)
        else:
            kind, attributes = ReplaceOp, {}
            attributes["op"] = text_attribute(other.name)
            if other.attributes:
                attributes["with"] = DictionaryAttr(dict(other.attributes))
        self._recording.add(kind.create(operands=[self._handle], attributes=attributes))

    def decompose(self) -> None:
        """
        Replaces ops in the groups by their decompositions; ops without one stay:
        `s.find(lambda x, w, b: F.linear(x, w, b)).decompose()`.
        """
        self._recording.add(DecomposeOp.create(operands=[self._handle]))

    def recompute(self) -> None:
        """
        Requests that the backward pass recomputes the intermediate values of the
        groups: `s["h.*"].find(lambda x, y: F.softmax(x + y, -1)).recompute()`.
        """
        attributes = {"policy": StringAttr("full")}
        self._recording.add(
            RecomputeOp.create(operands=[self._handle], attributes=attributes)
        )


@dataclass(frozen=True)
class Onnx:
    """An ONNX operator with attributes, made by the function `onnx`."""

    name: str
    attributes: Mapping[str, Attribute]


def onnx(name: str, **attributes: int | float | str) -> Onnx:
    """
    Returns an ONNX operator with attributes, for `FoundGroups.replace`: `onnx("Gelu",
    approximate="tanh")`.
    """
    own = {key: _onnx_attribute(value) for key, value in attributes.items()}
    return Onnx(name, own)


def _onnx_attribute(value: int | float | str) -> Attribute:
    return FloatAttr(value, f32) if isinstance(value, float) else knob_attribute(value)
