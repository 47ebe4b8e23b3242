"""Define the causes of missed ticks, for the loop, reports, gates, what-if estimates and web pages.

`rtcontrol/loop/attribution.py` chooses the cause of a miss. docs/deadlines.md explains the evidence for each cause.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple


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


class Advice(NamedTuple):
    """The meaning of a cause or sub-cause, and a hint how to avoid such misses. Both are texts for people."""

    meaning: str
    hint: str


@dataclass(frozen=True)
class CauseEntry:
    """A row of the table of causes. `replayed` says how an estimate for another tick rate treats such a miss.
    `outage`: nothing runs for the same time. `always`: the tick misses again. `time`: the tick misses if the durations
    of its steps exceed the deadline."""

    meaning: str
    hint: str
    subcauses: Mapping[str, Advice] = field(default_factory=dict)
    replayed: Literal["outage", "always", "time"] = "time"


_MORE_CPU = "Stop other programs, or give this one more processors (container limits, `taskset`, `chrt -f 50`)."
_FREE_MEMORY = "Free memory, and turn swap off (`free -h`, `swapoff -a`)."
_PAUSE = {
    "gc": Advice("Python collected garbage", "Create fewer objects per tick in the world and its tools."),
    "starved": Advice("the loop's process waited for a processor", _MORE_CPU),
    "stopped": Advice(
        "a signal, a debugger or the machine stopped the loop's process",
        "Look for Ctrl-Z, `kill -STOP`, `docker pause`, and a suspended or overloaded virtual machine.",
    ),
    "stall": Advice(
        "code in C held Python's lock, so that no other thread ran",
        "Find the slow call in the world or a tool (a regular expression, a large number), and shorten it.",
    ),
    "disk": Advice("the loop's process waited for memory that was on the disk", _FREE_MEMORY),
}
_STANDBY = "With host.standby=true a second decoder takes over at once."
_HOST = {
    "lost": Advice(
        "the decoder's process ended or hung",
        f"Look for its reason in the log and in `dmesg`. {_STANDBY}",
    ),
    "restarting": Advice("the decoder's process was starting again after its loss", _STANDBY),
    "gave_up": Advice("the decoder's process could not start again", "Correct the error in the log, and start again."),
}
_WAKE = {
    "scheduler": Advice("a thread of the loop waited for a processor", _MORE_CPU),
    "disk": Advice("a thread of the loop waited for memory that was on the disk", _FREE_MEMORY),
    "executor": Advice(
        "an executing call blocked the loop", "Shorten the tool or `step`: it held Python's lock meanwhile."
    ),
}
_NO_OBSERVATION = {
    "none_yet": Advice(
        "the world has sent no observation yet", "Check that the world, the client or the sensors' topics have started."
    ),
    "unreadable": Advice("the agent's `observe` raised", "Correct `observe` at the place that the error names."),
}
_STALE_OBSERVATION = {
    "frozen": Advice(
        "the world made no new observation", "Look for a world that hangs, a dead sensor or a lost connection."
    ),
    "late": Advice("new observations came, but were too old", "Speed up world and network, or raise loop.max_age_ms."),
}
_DECIDE = {
    "observe": Advice("the agent's text took long", "Shorten the agent's `observe`."),
    "send": Advice("the request could not be handed to the decoder in time", "Look at the error, and at the decoder."),
    "queued": Advice(
        "the decoder worked on older requests", "Lower loop.hz, take a smaller model, or serve fewer sessions at once."
    ),
    "decoder_stopped": Advice(
        "a signal, a debugger or the machine stopped the decoder's process",
        "Look for `kill -STOP`, a paused container, and code in C that holds Python's lock in that process.",
    ),
    "decoder_starved": Advice("the decoder's process waited for a processor, or its quota was used up", _MORE_CPU),
    "decoder_slow": Advice(
        "the model (or the expert) took longer than the deadline allows",
        "Lower loop.hz, raise loop.deadline_ms, shorten the expert, or take a smaller model, host.threads or a GPU.",
    ),
    "error": Advice("the decision raised an error", "Read the error in this report, and correct its cause."),
    "timeout": Advice("the decision server did not answer in time", "Look at its load and at the network."),
    "connection": Advice("the decision server could not be reached", "Check its address, and that it runs."),
    "http": Advice("the decision server answered with an HTTP error", "Read the error, and the server's log."),
    "refused": Advice("the decision server refused the request", "Read the error: key, model or tools do not fit."),
    "malformed": Advice("the decision server's answer could not be read", "Check the server's version and protocol."),
    "server_error": Advice("the policy server failed", "Read the policy server's log."),
    "not_finite": Advice("the policy's actions had NaN or infinity", "Check the policy's inputs and checkpoint."),
    "repeated": Advice("the policy server repeated an earlier answer", "Check that its answers keep their order."),
}
_EXECUTE = {
    "raised": Advice("the tool or the world raised", "Correct the tool at the place that the error names."),
    "slow": Advice("the call was still running at its deadline", "Shorten the tool or the world's `step`."),
    "busy": Advice(
        "the actuator still executed another call, or waited for the world",
        "Shorten the tools and the world's `step`, or lower loop.hz.",
    ),
    "expired": Advice("the call reached the client too late", "Look at the network, or raise loop.deadline_ms."),
    "refused": Advice("the client refused the call", "Read the client's error: its tools and the agent's must agree."),
    "failed": Advice("the client could not execute the call", "Read the client's error, and its log."),
}
_SEE_BELOW = "Look at its sub-causes."
CAUSES: Mapping[Cause, CauseEntry] = {
    Cause.PAUSE: CauseEntry("the loop's process did not run", _SEE_BELOW, _PAUSE, "outage"),
    Cause.HOST: CauseEntry("the decoder was not running", _SEE_BELOW, _HOST, "outage"),
    Cause.WAKE: CauseEntry("the loop was woken late", _SEE_BELOW, _WAKE, "outage"),
    Cause.NO_OBSERVATION: CauseEntry("there was no observation yet", _SEE_BELOW, _NO_OBSERVATION, "always"),
    Cause.STALE_OBSERVATION: CauseEntry("the last observation was too old", _SEE_BELOW, _STALE_OBSERVATION, "always"),
    Cause.DECIDE: CauseEntry("the decision took too long, or failed", _SEE_BELOW, _DECIDE),
    Cause.INVALID: CauseEntry(
        "the decision was not a legal call", "Check that model and tools fit: `rtcontrol tools check`.", {}, "always"
    ),
    Cause.EXECUTE: CauseEntry("the call was not executed in time", _SEE_BELOW, _EXECUTE),
    Cause.UNKNOWN: CauseEntry(
        "no evidence explains at least half of the lateness", "Report it to rtcontrol, with the run's folder."
    ),
}
# Full names of causes: `cause.subcause`, or `cause` if it has no sub-causes.
NAMES = {f"{cause}.{sub}" if sub else f"{cause}" for cause, c in CAUSES.items() for sub in c.subcauses or ("",)}
NAMES.remove(Cause.UNKNOWN)


def advice(name: str) -> Advice:
    """Return the advice on a cause, or on a sub-cause such as `decide.queued`. It is empty if the name is unknown."""
    cause, _, subcause = name.partition(".")
    if cause not in CAUSES:
        return Advice("", "")
    entry = CAUSES[Cause(cause)]
    return entry.subcauses.get(subcause, Advice(entry.meaning, entry.hint))


# By cause: (its colour on light pages, its colour on dark pages).
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


def causes_stylesheet() -> str:
    """Return a stylesheet that defines a CSS variable with the colour of each cause."""
    light, dark = (" ".join(f"--{cause}: {shades[i]};" for cause, shades in COLOURS.items()) for i in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def causes_script() -> str:
    """Return the text of a JavaScript module that exports the meaning of each cause."""
    return f"export const CAUSES = {json.dumps({cause.value: entry.meaning for cause, entry in CAUSES.items()})};\n"
