"""
Finds the number of devices in the command that starts a run, and the arguments of its
script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distir.errors import DistIRError
from distir.exports.systems.shell import Word


@dataclass(frozen=True)
class Launch:
    """
    A command that starts a run: `per_node` devices on each of `nodes` nodes (a number
    that the command does not give is 0), the Python script, and the script's own
    arguments (`words`).
    """

    per_node: int
    nodes: int
    script: str
    words: list[Word]

    @property
    def devices(self) -> int:
        """
        The number of devices of the run, or 0 if unknown. One node is assumed if
        `nodes` is 0.
        """
        return self.per_node * (self.nodes or 1)


_PER_NODE = (
    "nproc-per-node",
    "num-gpus",
    "gpus-per-node",
    "ntasks-per-node",
    "num-processes",
)
_NODES = ("nnodes", "num-nodes", "nodes", "num-machines")


def launch_of(words: Sequence[Word], path: str) -> Launch:
    """
    Splits a command into a launcher with its options, a Python script, and the script's
    arguments. Launchers are torchrun, `python -m torch.distributed.launch`, deepspeed,
    srun and `accelerate launch`. If no word ends in `.py`, all words count as arguments
    of the script. Raises DistIRError, with file and line, if the number of devices or
    nodes is not a number.
    """
    end = next((i for i, word in enumerate(words) if word.text.endswith(".py")), None)
    if end is None:
        return Launch(0, 0, "", list(words))
    known: dict[str, int] = {}
    total = False
    for index, word in enumerate(words[:end]):
        name, _, value = word.text.partition("=")
        key = name.lstrip("-").replace("_", "-")
        if not name.startswith("-"):
            continue
        key = {"N": "nnodes", "np": "num-processes", "n": "num-processes"}.get(key, key)
        if key not in (*_PER_NODE, *_NODES):
            continue
        text = value or (words[index + 1].text if index + 1 < end else "")
        if key in _NODES and re.fullmatch(r"(\d+):\1", text):
            text = text.split(":")[0]
        if not text.isdigit():
            why = (
                "is not a number"
                if not text.startswith("$")
                else (
                    f"is not set in the script; give it with --set {text.strip('${}')}=N"
                )
            )
            raise DistIRError(f"{path}, line {word.line}: {name} {text} {why}")
        known["per_node" if key in _PER_NODE else "nodes"] = int(text)
        total = total or key == "num-processes"
    per_node, nodes = known.get("per_node", 0), known.get("nodes", 0)
    if total and nodes:
        per_node //= nodes
    return Launch(per_node, nodes, words[end].text, list(words[end + 1 :]))


_SBATCH = re.compile(
    r"^#SBATCH\s+(?:--(?P<name>[\w-]+)[=\s]+|-N\s*)(?P<value>\S+)", re.M
)


def sbatch_devices(text: str) -> tuple[int, int]:
    """
    Returns the devices per node and the number of nodes in the `#SBATCH` lines of a
    script. A number that these lines do not give is 0.
    """
    found: dict[str, int] = {}
    for match in _SBATCH.finditer(text):
        value = match["value"].rsplit(":", 1)[-1]
        if value.isdigit():
            found[match["name"] or "nodes"] = int(value)
    per_node = (
        found.get("gpus-per-node")
        or found.get("gres")
        or found.get("ntasks-per-node", 0)
    )
    return per_node, found.get("nodes", 1 if per_node else 0)
