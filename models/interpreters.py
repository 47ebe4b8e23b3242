"""Other interpreters: of packages that want an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rtcontrol.models.errors import UserError

SECONDS = 60


def interpreter(packages: tuple[str, ...], given: Path | None, variable: str, install: str) -> Path:
    """The one that has these packages: as given, or as the variable of the environment says, or this one. Raises
    UserError, which tells how to `install` them."""
    path = given or Path(os.environ.get(variable) or sys.executable)
    check = f"import importlib.util as u; print(*[name for name in {packages!r} if u.find_spec(name) is None])"
    try:
        done = subprocess.run([str(path), "-c", check], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{path} is no interpreter that runs ({error}).", install) from None
    if done.returncode:
        raise UserError(f"{path} is no interpreter that runs ({done.stderr.strip()[-200:]}).", install)
    if missing := done.stdout.split():
        raise UserError(f"{path} has no {missing[0]}.", install)
    return path
