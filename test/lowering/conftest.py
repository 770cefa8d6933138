"""What tests that start processes share."""

from collections.abc import Iterator

import pytest

from distir.lowering.launch import Spawner


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    """One process with PyTorch loaded, which forks the ranks of every test."""
    with Spawner() as running:
        yield running
