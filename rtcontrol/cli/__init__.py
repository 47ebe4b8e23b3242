"""The command line: `rtcontrol run`, `serve`, `bridge`, `report`, `doctor` and the rest."""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["main"]


def main() -> None:
    """The console script. Ctrl-C ends it without a word also while it is imported."""
    # The handler of an import: an exception there may be swallowed, or shown from where nobody catches it.
    main_thread = threading.current_thread() is threading.main_thread()
    if quick := main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from rtcontrol.cli.app import main as start

    if quick:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    start()
