"""The causes of missed ticks. The loop, reports, gates, what-if estimates and web pages use this table.

`rtcontrol/loop/attribution.py` chooses the cause of a miss. docs/deadlines.md explains the evidence for each cause.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rtcontrol.hosts.protocol import LOSSES


class Cause(StrEnum):
    """The causes of a missed tick in order of precedence. If several causes apply, the first of them is reported."""

    PAUSE = "pause"
    HOST = "host"
    WAKE = "wake"
    NO_OBSERVATION = "no_observation"
    STALE_OBSERVATION = "stale_observation"
    DECIDE = "decide"
    INVALID = "invalid"
    EXECUTE = "execute"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CauseEntry:
    """A row of the table of causes. `meaning` is a text for people. `replayed` says how a what-if estimate at another
    rate treats the miss: `outage` stops the loop for the same time, `always` misses again, and `time` compares the
    durations of the tick's steps with the deadline."""

    meaning: str
    subcauses: tuple[str, ...] = ()
    replayed: Literal["outage", "always", "time"] = "time"


_DECIDE = ("observe", "send", "queued", "decoder_stopped", "decoder_slow", "error", *LOSSES)
_EXECUTE = ("raised", "slow", "busy", "expired", "refused", "failed")
CAUSES: Mapping[Cause, CauseEntry] = {
    Cause.PAUSE: CauseEntry("the loop's process was stopped", ("gc", "stall", "disk"), "outage"),
    Cause.HOST: CauseEntry("the decoder was not running", ("lost", "restarting", "gave_up"), "outage"),
    Cause.WAKE: CauseEntry("the loop was woken late", ("scheduler", "disk", "executor"), "outage"),
    Cause.NO_OBSERVATION: CauseEntry("there was no observation yet", ("none_yet", "unreadable"), "always"),
    Cause.STALE_OBSERVATION: CauseEntry("the last observation was too old", ("frozen", "late"), "always"),
    Cause.DECIDE: CauseEntry("the decision took too long, or failed", _DECIDE),
    Cause.INVALID: CauseEntry("the decision was not a legal call", (), "always"),
    Cause.EXECUTE: CauseEntry("the call was not executed in time", _EXECUTE),
    Cause.UNKNOWN: CauseEntry("no evidence explains at least half of the lateness"),
}
# Full names of misses: `cause.subcause`, or only `cause` if the cause has no sub-causes.
NAMES = {f"{cause}.{sub}" if sub else f"{cause}" for cause, c in CAUSES.items() for sub in c.subcauses or ("",)}
NAMES.remove(Cause.UNKNOWN)
# Colour of each cause: on a light page, and on a dark page.
COLOURS: Mapping[Cause, tuple[str, str]] = {
    Cause.PAUSE: ("#9a3fb5", "#d58cf0"),
    Cause.HOST: ("#111111", "#f5f5f5"),
    Cause.WAKE: ("#c77700", "#ffb347"),
    Cause.NO_OBSERVATION: ("#2e9bd6", "#7cc9f5"),
    Cause.STALE_OBSERVATION: ("#0b5aa8", "#5b9df0"),
    Cause.DECIDE: ("#d1430f", "#ff7a45"),
    Cause.INVALID: ("#8a6d00", "#e6c84a"),
    Cause.EXECUTE: ("#0a8f6a", "#4fd1ab"),
    Cause.UNKNOWN: ("#e00055", "#ff5c93"),
}


def stylesheet() -> str:
    """Return a stylesheet that defines a CSS variable with the colour of each cause."""
    light, dark = (" ".join(f"--{cause}: {shades[i]};" for cause, shades in COLOURS.items()) for i in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def script() -> str:
    """Return a JavaScript module that exports the meaning of each cause, for the live pages."""
    return f"export const CAUSES = {json.dumps({cause.value: entry.meaning for cause, entry in CAUSES.items()})};\n"
