"""The command line: `rtcontrol run`, `serve`, `bridge`, `report`, `doctor` and the rest."""

from rtcontrol.cli.app import main

__all__ = ["main"]
