"""Puts this folder's helpers (`synthetic`) within reach of its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
