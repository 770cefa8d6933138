"""Checkpoints, plans with their programs, and schedules: what one run leaves to another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzz.damage import mutated_bytes, mutated_text
from fuzz.scenario import Scenario
from hypothesis import strategies as st
from support.command_line import TWO_LAYERS, succeed
from support.random_programs import Draw
from torch.distributed.checkpoint.state_dict_saver import save

from distir.hardware import FOLDER
from distir.runtime.storage.checkpoints import FORMAT


def _sealed(body: Any) -> bytes:
    """A manifest whose own checksum is right."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"sha256": digest, "manifest": body}).encode()


def checkpoints() -> list[Scenario]:
    """A checkpoint of PyTorch's, with the manifest of a training and without it."""
    state: dict[str, Any] = {
        "model": {"w": torch.arange(6.0).reshape(2, 3), "s": torch.tensor(3.0)},
        "optimizer": {"step": 3, "groups": [{"lr": 0.1}, torch.ones(2)]},
    }
    save(state, checkpoint_id=Path("dcp"), no_dist=True)
    files = {f"dcp/{p.name}": p.read_bytes() for p in sorted(Path("dcp").iterdir())}
    facts = {
        name.removeprefix("dcp/"): {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for name, data in files.items()
    }
    manifest = {"format": FORMAT, "step": 1, "files": facts}
    command = ("export", "dcp", "-o", "m.safetensors")
    found: list[Scenario] = []

    def damaged(
        name: str,
        content: bytes,
        mutate: Callable[[Draw, bytes], bytes],
        others: dict[str, bytes],
    ) -> None:
        rest = {n: data for n, data in others.items() if n != name}
        found.append(Scenario("checkpoint", name, content, command, mutate, rest))

    for name, data in files.items():
        damaged(name, data, mutated_bytes, files)
    damaged("dcp/manifest.json", _sealed(manifest), mutated_text, files)
    damaged("dcp/manifest.json", _sealed(manifest), _mutated_body, files)
    return found


_HOSTILE = [
    *(None, 3, -1, 1e400, "x", "", [], {}, [1], True, "a\0b", "/dev/zero", "../x", "."),
    *({"bytes": 1, "sha256": "x"}, {"bytes": -1}, "\ud800", 2**70),
]
"""What stands in a manifest in the place of something else, by value or as a name."""


def _mutated_body(draw: Draw, data: bytes) -> bytes:
    """A manifest that says something else, with a right checksum."""
    body = json.loads(data)["manifest"]
    inner = body["files"]
    place: Any = draw(st.sampled_from([body, inner, *inner.values()]))
    key = draw(st.sampled_from(sorted(place)))
    how = draw(st.integers(0, 2))
    if how == 0:
        place[key] = draw(st.sampled_from(_HOSTILE))
    elif how == 1:
        del place[key]
    else:
        name = draw(st.sampled_from([h for h in _HOSTILE if isinstance(h, str)]))
        place[name] = draw(st.sampled_from([place[key], *_HOSTILE]))
    return _sealed(body)


def plans() -> list[Scenario]:
    """A saved plan, its program, its cluster and its profile, of which one is damaged."""
    Path("m.mlir").write_text(TWO_LAYERS)
    Path("c.mlir").write_bytes((FOLDER / "dgx-a100.mlir").read_bytes())
    Path("p.json").write_bytes((FOLDER / "profiles" / "A100.json").read_bytes())
    search = "search m.mlir --cluster c.mlir --profile p.json --world-size 4 --jobs 1"
    succeed(*search.split(), "--save-plan", "plan.json", "-o", "best.mlir")
    files = {
        n: Path(n).read_bytes() for n in ("m.mlir", "c.mlir", "p.json", "plan.json")
    }
    commands = {
        "plan.json": ["distribute m.mlir --plan plan.json -o out.mlir"],
        "m.mlir": ["distribute m.mlir --plan plan.json -o out.mlir"],
        "c.mlir": [
            f"{search} -o out.mlir",
            "distribute m.mlir --cluster c.mlir -d 2 -t 2 -o out.mlir",
        ],
        "p.json": [f"{search} -o out.mlir"],
    }
    return [
        Scenario(
            "plan",
            name,
            files[name],
            tuple(command.split()),
            others={n: data for n, data in files.items() if n != name},
        )
        for name, found in commands.items()
        for command in found
    ]


_SCRIPT = """
def schedule(s):
    k = s.knob("k", [1, 2])
    layers = s.match("l*", count=2)
    layers.first(k).cast("bf16")
    s.match("l0").param("weight").split(1, "t")
"""


def schedules() -> list[Scenario]:
    """Scripts of schedules in Python, which run, so that their own errors are met too."""
    return [
        Scenario(
            "schedule",
            "s.py",
            _SCRIPT.encode(),
            tuple(f"schedule m.mlir s.py -o out.mlir {more}".split()),
            others={"m.mlir": TWO_LAYERS.encode()},
        )
        for more in ("--set k=1", "--set k=2", "--set k=2 --print")
    ]
