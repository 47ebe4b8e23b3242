"""The command line: `rtcontrol run`, `serve`, `bridge`, `report`, `doctor` and the rest."""

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from rtcontrol.cli.app import main as start

    start()
