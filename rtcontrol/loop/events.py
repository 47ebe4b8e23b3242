"""What a loop reports to whoever listens to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class LoopReport:
    """For whoever listens to the run: `what` is accepted, refused or doubted (an instruction, and why), or changed
    (what the operator may see)."""

    what: Literal["accepted", "refused", "doubted", "changed"]
    text: str = ""
    why: str = ""
