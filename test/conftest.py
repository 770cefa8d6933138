"""
Lets every test import the helper modules that lie in this folder, and takes the time
limit off Hypothesis' examples: how long one takes depends on what else the machine does.
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("distir", deadline=None)
settings.load_profile("distir")
