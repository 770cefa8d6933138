"""The training systems whose options DistIR reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

from distir.exports.systems.accelerate import Accelerate
from distir.exports.systems.bridge import MegatronBridge
from distir.exports.systems.deepspeed import DeepSpeed
from distir.exports.systems.megatron import Megatron
from distir.exports.systems.nanotron import Nanotron
from distir.exports.systems.nemo import Nemo
from distir.exports.systems.system import System
from distir.exports.systems.torchtitan import Torchtitan

SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        Megatron(),
        MegatronBridge(),
        Nemo(),
        DeepSpeed(),
        Torchtitan(),
        Nanotron(),
        Accelerate(),
    )
}
"""
The training systems by name. `distir export --to` and `distir plan --from` offer them
as choices.
"""

READABLE = tuple(name for name in SYSTEMS if name != "megatron-bridge")
"""The names of the systems whose files can be read."""
