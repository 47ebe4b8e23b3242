"""Import the recipes, which are scripts outside the package, as modules."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.helpers.processes import ROOT

FOLDER = ROOT / "models" / "recipes"


def recipe(name: str) -> ModuleType:
    """Return a recipe as a module."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)
