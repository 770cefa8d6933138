"""
Lets every test import the helper modules that lie in this folder, and takes the time
limit off Hypothesis' examples: how long one takes depends on what else the machine does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from distir.lowering.launch import Spawner

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("distir", deadline=None)
settings.load_profile("distir")


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    """One process with PyTorch loaded, which forks the ranks of every test."""
    from distir.lowering.launch import Spawner

    with Spawner() as running:
        yield running
