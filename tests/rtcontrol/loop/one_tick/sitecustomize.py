"""Counts the calls of each function of this project, in every process of a run, between two files' appearing.

Python imports a module of this name at its start: in the run's process, and in the decoder's, which Ray starts.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = os.environ.get("RTCONTROL_TEST_ONE_TICK")


def count(folder: Path, root: str) -> None:
    calls: Counter[tuple[str, str, str]] = Counter()
    counting = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        # An environment in the clone, as CONTRIBUTING.md makes it, is none of this project.
        if counting and event == "call" and file.startswith(root) and "/site-packages/" not in file:
            calls[threading.current_thread().name, file, frame.f_code.co_qualname] += 1

    def watch() -> None:
        nonlocal counting
        sys.setprofile(None)
        while not (folder / "begin").exists():
            time.sleep(0.05)
        counting = True
        while not (folder / "end").exists():
            time.sleep(0.05)
        counting = False
        if calls:
            path = folder / f"{os.getpid()}.part"
            path.write_text(json.dumps([[*key, n] for key, n in calls.items()]))
            path.rename(path.with_suffix(".json"))

    threading.setprofile(profile)
    sys.setprofile(profile)
    threading.Thread(target=watch, name="counting", daemon=True).start()


if FOLDER is not None:
    count(Path(FOLDER), os.environ["RTCONTROL_TEST_ROOT"])
