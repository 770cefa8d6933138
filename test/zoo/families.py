"""All families of the zoo, and what is refused of them on purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module

from zoo.columns import COLUMNS
from zoo.model import FAMILIES, Family

_MODULES = ("text", "senses", "convolutional", "own")


def families() -> dict[str, Family]:
    """Returns the families by name, those of one kind together."""
    for name in _MODULES:
        import_module(f"zoo.{name}")
    return FAMILIES


@dataclass(frozen=True)
class Refusal:
    """Columns of families that are refused with such a message, and why."""

    families: tuple[str, ...]
    columns: tuple[str, ...]
    message: str
    reason: str

    def explains(self, family: str, column: str, outcome: str) -> bool:
        """Whether an outcome is this refusal."""
        return (
            family in self.families
            and column in self.columns
            and re.search(self.message, outcome) is not None
        )


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        ("clip", "siglip"),
        ("p2 k2", "step p2 k2"),
        "needs what .* makes of the whole batch",
        "The contrastive loss compares every text with every image of the batch. With "
        "several micro-batches no stage could go back before all of them went forward; "
        "with one (`-k 1`) such models run in pipelines.",
    ),
    Refusal(
        ("vilt",),
        COLUMNS,
        "data-dependent expression",
        "How long its sequences are depends on the values of a mask of pixels; programs "
        "have shapes that are known.",
    ),
    Refusal(
        ("rwkv",),
        ("step", "step d2 t2", "step zero 3", "step p2 k2"),
        r"exporter removed a detach\(\)",
        "The model detaches its state, and PyTorch's exporter leaves that out where a run "
        "of operations is replaced: gradients would be others, so that training is refused.",
    ),
    Refusal(
        ("llava",),
        ("p2 k2", "step p2 k2"),
        "needs what .* makes of the whole batch",
        "The patches of all images go one after the other to the places that the words of all "
        "texts leave for them: which ones a text gets depends on the texts before it. With one "
        "micro-batch (`-k 1`) such models run in pipelines; with `equal_features`, if each text "
        "has as many patches, with several.",
    ),
)
