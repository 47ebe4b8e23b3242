"""Store which robots people paused or stopped. These robots stay paused after a restart of the program or server."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from rtcontrol.models.errors import home_folder, read_text
from rtcontrol.models.files import replace_file


def default_folder() -> Path | None:
    """Return $XDG_STATE_HOME/rtcontrol/paused, or ~/.local/state/rtcontrol/paused; None without a home folder."""
    folder, base = home_folder(), os.environ.get("XDG_STATE_HOME")
    state = Path(base) if base else folder and folder / ".local" / "state"
    return state and state / "rtcontrol" / "paused"


class PausedRobots:
    """A store of paused robots: one file per robot, in a folder that all servers of a user share.

    A change takes effect at once. If the folder cannot be written, only this server knows the change, until it ends.
    Any thread may call the methods; only `save` and `reason` use the disk."""

    def __init__(self, folder: Path | None, log_line: Callable[[str], None]) -> None:
        self._folder, self._log_line = folder, log_line
        self._changed: dict[str, str] = {}  # by robot: reason for its pause ("": resumed) that is not yet on disk
        self._failed = False

    def change(self, robot: str, command: str, by: str) -> None:
        """Store that a person paused, stopped or resumed a robot."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._changed[robot] = "" if command == "resume" else f"{robot}: {command} ({by}) at {stamp}"

    def reason(self, robot: str) -> str:
        """Return who paused or stopped a robot and when, or an empty text if it may act."""
        if (reason := self._changed.get(robot)) is not None:
            return reason
        if (path := self._path(robot)) is None or not path.exists():
            return ""
        try:
            return read_text(path).strip()
        except OSError as error:
            return f"{robot}: {path} cannot be read ({error.strerror})"

    def save(self) -> None:
        """Write the changes to the disk. After an error, log the first error, and try again at the next call."""
        for robot, reason in list(self._changed.items()):
            try:
                if (path := self._path(robot)) is None:
                    raise OSError(0, "the user has no home folder")
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, reason + "\n") if reason else path.unlink(missing_ok=True)
            except OSError as error:
                if not self._failed:
                    hint = "Give --set serve.paused_robots=FOLDER."
                    self._log_line(f"paused robots will be lost at a restart of the server ({error.strerror}). {hint}")
                self._failed = True
                return
            if self._changed.get(robot) == reason:
                del self._changed[robot]

    def _path(self, robot: str) -> Path | None:
        """Return the path of a robot's file: the quoted name of the robot, and a digest of the name."""
        digest = hashlib.sha256(robot.encode()).hexdigest()[:8]
        return self._folder and self._folder / f"{quote(robot, safe='')[:100]}-{digest}"
