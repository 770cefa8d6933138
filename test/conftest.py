"""Lets every test import the helper modules that lie in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
