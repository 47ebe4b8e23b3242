"""The official AST checker of BFCL (`bfcl-eval`), which is asked and never copied.

It runs in a process of its own, that neither its stand-in for a table nor its package's folder touches this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check
from rtcontrol.models.data.sources.bfcl import INSTALL, package_folder
from rtcontrol.models.errors import UserError

SECONDS = 600.0
PROCESS = Path(__file__).with_name("bfcl_process.py")


@dataclass(frozen=True, slots=True)
class CheckerAnswer:
    """The checker's verdict, its words and its `kind` of error; where it `raised` one of its own, the answer counts as
    wrong."""

    valid: bool
    error: str = ""
    raised: bool = False
    kind: str = ""


def check(cases: Sequence[tuple[Check, Sequence[Call]]], place: Path | None = None) -> list[CheckerAnswer]:
    """The verdicts on what was answered, in order. `place` has the package: see `package_folder`. Raises UserError."""
    folder = package_folder(place)
    if not cases:
        return []
    told = "".join(json.dumps({**one.to_dict(), "calls": [c.to_dict() for c in calls]}) + "\n" for one, calls in cases)
    # Isolated: neither this file's folder nor PYTHONPATH is where it imports from.
    command = [sys.executable, "-I", str(PROCESS), str(folder.parent)]
    try:
        done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=SECONDS, encoding="utf-8")
    except subprocess.TimeoutExpired:
        raise UserError(f"BFCL's checker was not done in {SECONDS:.0f} s.", "Judge fewer rows at once.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise UserError(f"BFCL's checker in {folder} does not run ({last[:200]}).", INSTALL)
    found = [CheckerAnswer(**json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), f"{len(found)} verdicts on {len(cases)} answers"
    return found
