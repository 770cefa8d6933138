"""
A pipeline stage, made of a copy of the model. The forward code of the model stays the
same.
"""

# pyright: basic

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

STAGES: list[list[str]] = []


class AbsentModule(nn.Module):
    """A placeholder for a module of another stage. The stage never uses its results."""

    def __init__(self, module):
        super().__init__()
        self.width = None
        if isinstance(module, nn.Embedding):
            self.width = module.embedding_dim
        self.outputs = getattr(module, "out_features", None)

    def forward(self, *args, **kwargs):
        """
        Returns zeros in the output shape of an absent embedding or linear layer. If the
        absent module is neither, returns the first argument.
        """
        x = args[0] if args else next(iter(kwargs.values()))
        if self.width is not None:
            return torch.zeros(*x.shape, self.width, device=x.device)
        if self.outputs is not None:
            return x.new_zeros(*x.shape[:-1], self.outputs)
        return x


class ModelStage(nn.Module):
    """
    A pipeline stage: the whole model with `AbsentModule`s in place of the modules of
    all other stages. The stage takes the output of the preceding stage and, by name,
    the inputs of the model. Every stage except the first starts at its first layer.
    Every stage except the last ends after its last layer.
    """

    def __init__(self, model, index):
        super().__init__()
        self.model, self.index = model, index
        self.arrived = self.left = None
        for other, names in enumerate(STAGES):
            for name in names if other != index else ():
                model.set_submodule(name, AbsentModule(model.get_submodule(name)))

    def own(self, names):
        """Returns the module paths in `names` that belong to this stage."""
        parts = [tuple(name.split(".")) for name in STAGES[self.index]]
        return [
            n for n in names if any(tuple(n.split("."))[: len(p)] == p for p in parts)
        ]

    def watch(self):
        """
        Adds hooks that make the stage start at its first layer and end after its last
        layer.
        """
        names = STAGES[self.index]
        if self.index > 0:
            layer = self.model.get_submodule(names[0])
            layer.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True)
        if self.index + 1 < len(STAGES):
            self.model.get_submodule(names[-1]).register_forward_hook(self._leave)

    def _enter(self, layer, args, kwargs):
        if args:
            return (self.arrived, *args[1:]), kwargs
        return args, {**kwargs, next(iter(kwargs)): self.arrived}

    def _leave(self, layer, args, output):
        self.left = tree_leaves(output)[0]

    def forward(self, *arrived, **inputs):
        """
        Returns the output of the stage's last layer. The last stage returns the first
        tensor of the model's output.
        """
        if self.index == 0:
            output = self.model(*arrived, **inputs)
        else:
            (self.arrived,) = arrived
            output = self.model(**inputs)
        if self.index + 1 < len(STAGES):
            output = self.left
        self.arrived = self.left = None
        return tree_leaves(output)[0]
