"""The software and hardware of this machine: versions of packages, processors, GPUs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from distir.version import __version__

_EXTRAS = {
    "torch": "import models of PyTorch, run programs, distir.parallelize",
    "jax": "distir.jax: functions of JAX",
    "serve": "distir explore: a page in the browser",
    "viz": "distir-gui: passes step by step",
}
"""The extras for users, and the uses that each has."""

_GPU_TOOL = "nvidia-smi"


@dataclass(frozen=True)
class Part:
    """A part of the installation, and a text on its state."""

    name: str
    state: str


@dataclass(frozen=True)
class Installation:
    """
    The parts of an installation. `steps` are sentences about the next steps for the
    user. `works` is whether all packages that every command needs are installed, in
    suitable versions.
    """

    parts: Sequence[Part]
    steps: Sequence[str]
    works: bool


def _state(needed: Requirement, version: Callable[[str], str]) -> tuple[str, bool]:
    """
    Returns a text on the state of a required package, and whether the package can be
    used. `version` returns the installed version of a package.
    """
    try:
        found = version(needed.name)
    except metadata.PackageNotFoundError:
        return "not installed", False
    if needed.specifier.contains(found, prereleases=True):
        return found, True
    return f"{found}, but DistIR needs {needed.specifier}", False


def _requirements() -> list[Requirement]:
    """
    Returns the requirements of the package `distir`, with its extras. The list is empty
    if the package is not installed and only its folder is on the path.
    """
    try:
        texts = metadata.requires("distir") or []
    except metadata.PackageNotFoundError:
        return []
    return [Requirement(text) for text in texts]


def _is_of(requirement: Requirement, extra: str) -> bool:
    """
    Whether a package is required with `extra` or, if `extra` is empty, without extras.
    """
    marker = requirement.marker
    if marker is None:
        return not extra
    always = marker.evaluate({"extra": ""})
    return always if not extra else marker.evaluate({"extra": extra}) and not always


def gpus() -> list[str] | None:
    """
    Returns the names of NVIDIA's GPUs with their memory, as reported by the driver's
    own tool. Returns None if there is no driver or the tool does not answer within ten
    seconds.
    """
    tool = shutil.which(_GPU_TOOL)
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip().splitlines() if done.returncode == 0 else None


def _gpu_state(found: list[str] | None) -> str:
    if found is None:
        return f"none ({_GPU_TOOL} does not answer); planning needs none"
    kinds = sorted({(found.count(name), name) for name in found})
    return "; ".join(f"{count} x {name}" for count, name in kinds) or "none"


def examined(version: Callable[[str], str] = metadata.version) -> Installation:
    """
    Returns the state of this machine's software and hardware. `version` is a function
    that returns the version of a package, or raises PackageNotFoundError; by default it
    returns the installed version.
    """
    requirements = _requirements()
    parts = [
        Part("distir", __version__),
        Part("Python", f"{platform.python_version()} ({sys.executable})"),
        Part("processors", f"{os.cpu_count()}, {platform.system()}"),
        Part("GPUs", _gpu_state(found_gpus := gpus())),
    ]
    steps: list[str] = []
    works = True
    for needed in (one for one in requirements if _is_of(one, "")):
        state, fits = _state(needed, version)
        parts.append(Part(needed.name, state))
        works = works and fits
    missing: list[str] = []
    for extra, use in _EXTRAS.items():
        states = [
            (one.name, *_state(one, version))
            for one in requirements
            if _is_of(one, extra)
        ]
        if not states:
            continue
        fits = all(fit for _, _, fit in states)
        shown = ", ".join(f"{name} {state}" for name, state, _ in states)
        parts.append(Part(f"[{extra}]", shown))
        if not fits:
            missing.append(f"pip install 'distir[{extra}]' for {use}")
    if not requirements:
        steps.append(
            "distir is not installed as a package, so that its requirements are unknown: "
            "pip install . in its folder"
        )
    if not works:
        steps.append(
            "pip install --upgrade distir: a package that is needed does not fit"
        )
    steps += missing
    if found_gpus:
        steps.append(
            "distir calibrate --backend nccl -o machine.json measures the GPUs"
        )
    if works:
        steps.append("distir demo shows the main steps")
    return Installation(parts, steps, works)
