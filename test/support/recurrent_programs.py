"""Recurrent layers as programs of one op, with their gradients."""

from __future__ import annotations

from typing import NamedTuple

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.differentiate import DifferentiatePass
from support.programs import parse
from support.training_programs import distributed

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


class Layer(NamedTuple):
    """A layer of `onnx`, by its sizes and attributes."""

    kind: str
    direction: str = "forward"
    batch_first: bool = False
    linear_before_reset: bool = False
    steps: int = 5
    batch: int = 4
    inputs: int = 6
    hidden: int = 8

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def program(self) -> ModuleOp:
        """Returns the layer, its inputs, weights and biases, and its outputs."""
        n, rows, width = self.directions, GATES[self.kind] * self.hidden, self.inputs
        x = [self.steps, self.batch, self.inputs]
        y = [self.steps, n, self.batch, self.hidden]
        if self.batch_first:
            x, y = [x[1], x[0], x[2]], [y[2], y[0], y[1], y[3]]
        shapes = {"x": x, "w": [n, rows, width], "r": [n, rows, self.hidden]}
        shapes["b"] = [n, 2 * rows]
        types = {name: _tensor(shape) for name, shape in shapes.items()}
        arguments = ", ".join(
            f'%{name}: {type_} {{dist.role = "{role}", dist.name = "{name}"}}'
            for (name, type_), role in zip(
                types.items(), ("input", *["parameter"] * 3), strict=True
            )
        )
        reset = ""
        if self.kind == "GRU":
            reset = f", linear_before_reset = {int(self.linear_before_reset)} : i64"
        return parse(f"""
            func.func @main({arguments}) -> {_tensor(y)} {{
              %y = onnx.{self.kind}(%x, %w, %r, %b) {{hidden_size = {self.hidden} : i64,
                direction = "{self.direction}", layout = {int(self.batch_first)} : i64, scope = "rnn"{reset}}}
                : ({", ".join(types.values())}) -> {_tensor(y)}
              func.return %y : {_tensor(y)}
            }}
        """)

    def gradients(self) -> ModuleOp:
        """Returns the layer with the gradients of the squares of errors."""
        return differentiated(self.program())

    def split(self, module: ModuleOp, t: int, **options: object) -> ModuleOp:
        """Returns the program with the hidden features split over t."""
        run = self.hidden // t
        shard = tuple(f"{name}:1=t:{run}" for name in "wr") if t > 1 else ()
        if self.kind == "RNN":  # whose rows are features
            shard = tuple(f"{name}:1=t" for name in "wr") if t > 1 else ()
        return distributed(module, t=t, shard=shard, **options)


def differentiated(module: ModuleOp, optimizer: str = "none") -> ModuleOp:
    """Returns the program with its loss and the gradients of its parameters."""
    DifferentiatePass(loss="mse", optimizer=optimizer).apply(Context(), module)
    return module


def _tensor(shape: list[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"
