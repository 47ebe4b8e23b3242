"""What a check found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One behaviour: `passed`, `failed` or `skipped`, and why."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""


class Failure(Exception):
    """A behaviour that is not as docs/protocol.md says; the text says what came instead."""


class Skip(Exception):
    """A behaviour that cannot be seen with this peer; the text says why."""


def table(findings: Sequence[Finding]) -> str:
    """The findings as lines for people."""
    width = max((len(f.name) for f in findings), default=0)
    lines = [f"{f.status:8} {f.name:{width}}  {f.detail}".rstrip() for f in findings]
    counts = {s: sum(f.status == s for f in findings) for s in ("passed", "failed", "skipped")}
    return "\n".join([*lines, ", ".join(f"{n} {s}" for s, n in counts.items())])
