"""The top floor: the fixed-rate control loop, its decoder hosts, its record and report, and the command line."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# In a source tree the floors `agents/ envs/ models/ bridges/` stand beside this package instead of inside it
# (setuptools' package-dir puts them inside on installation). Looking there too makes an uninstalled tree importable.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "models" / "__init__.py").is_file():
    __path__.append(str(_root))
