"""A module whose attributes have no fixed order: `test/parallel/test_start.py` keys it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Mark:
    """An object whose text has its address."""

    def __init__(self, name: str) -> None:
        self.name = name


def chosen(kinds: set[str]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function with constants that other code has too, and with a set around it."""

    def activation(x: torch.Tensor) -> torch.Tensor:
        if kinds & {"tanh of words", "relu of words"}:
            return torch.tanh(x)
        return x

    return activation


class Hashed(nn.Module):
    """A layer with sets of words, of sets and of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.words = {"first part", "second part", "third part", "fourth part"}
        self.marks = frozenset({Mark("a"), Mark("b"), Mark("c")})
        self.sets = {frozenset({"x y", "z w", "u v"}), frozenset({"q r"})}
        self.activation = chosen({"tanh of words", "relu of words"})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x))


if __name__ == "__main__":
    import hashed_module  # as a script imports it, and not as the script itself

    from distir.parallel.content import content_key

    module = hashed_module.Hashed()
    options = "mse", frozenset({"linear.weight", "linear.bias"})
    print(content_key("training", module, (torch.zeros(2, 4),), {}, options))
    held = list(module.activation.__code__.co_consts)
    print(content_key("training", module, (torch.zeros(2, 4),), {}, options))
    del held
    module.marks |= {Mark("d")}  # which is another module
    print(content_key("training", module, (torch.zeros(2, 4),), {}, options))
