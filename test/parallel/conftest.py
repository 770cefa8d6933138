"""
Packages of these tests are kept in a folder of their own, which all of them share, in all
processes that test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache() -> None:
    """A folder of packages that is fresh in each run."""
    patch = pytest.MonkeyPatch()
    patch.setenv(
        "DISTIR_CACHE", str(Path(os.environ["DISTIR_TEST_MODELS"], "packages"))
    )
