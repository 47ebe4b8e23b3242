"""The event model: what a record holds by topic, the JSON Schema of each topic, and the JSON of an event.

An event is a JSON object; a key that only its kind has tells the kind, and with it the topic. Stamps: `t_s` is seconds
since the first release, `*_ms` milliseconds. A message's log time is UTC, by the header's anchor of the two clocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 3  # of the whole format: a reader refuses a later one
MOST_NUMBERS = 4096  # of a larger array only type and shape are written: a camera's pictures would fill the disk
MOST_BYTES = 1 << 23  # of one event: a reader takes no message of twice that

NUMBER, INTEGER, TEXT, FLAG, OBJECT = ({"type": name} for name in ("number", "integer", "string", "boolean", "object"))
MAYBE_TEXT, MAYBE_FLAG, MAYBE_OBJECT = ({"type": [name, "null"]} for name in ("string", "boolean", "object"))
MAYBE_ACTIVE = {"type": ["object", "boolean"]}
TIME = {"type": "object", "title": "time", "properties": {"sec": INTEGER, "nsec": INTEGER}}
# What viewers know by their own names.
SCHEMAS = {"/picture": "foxglove.CompressedImage"}

FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "k": (INTEGER, "Number of the tick's release."),
    "n": (INTEGER, "Of a further call: how many calls of the tick came before it."),
    "t_s": (NUMBER, "When it was; of a tick its release, of an observation when it was captured."),
    "epoch": (INTEGER, "Of the world: grows with every reset."),
    "seq": (INTEGER, "Of the observation."),
    "member": (TEXT, "Of a crowd: whose it is."),
    "rested": (INTEGER, "Of a crowd: releases before it that were left out, as nothing happened to the member."),
    "kind": (TEXT, "call, null, held, overtaken, epoch_over or miss."),
    "cause": (TEXT, "Why it missed, as is known now; without it, it was on time."),
    "subcause": (TEXT, "What of that cause."),
    "evidence": (OBJECT, "Evidence of the cause."),
    "why": (
        TEXT,
        "Why a call was held (confirm ...), acted (fresh, late ...) or was safe (miss, exit ...).",
    ),
    "action": (TEXT, "What the fallback did: hold, safe, pending, none or stop."),
    "call": (TEXT, "The call that was decided, or that is meant."),
    "decided_by": (TEXT, "Where there is a backup: first or backup."),
    "kept": (OBJECT, "By head: the value that was preferred, where hysteresis kept the active one."),
    "answers": (INTEGER, "Where the first one's answer, or the plan, is to an older observation: that one's tick."),
    "step": (INTEGER, "Of a plan: which step decided it, from 0."),
    "steps": (INTEGER, "Of a plan: how many it has."),
    "spans_ms": (OBJECT, "When each step was done, from the release on."),
    "wake_ms": (NUMBER, "How late the loop's thread woke."),
    "latency_ms": (NUMBER, "From release to effect."),
    "decide_ms": (NUMBER, "In the decoder."),
    "age_ms": (NUMBER, "Of the observation, at the effect."),
    "execute_ms": (NUMBER, "In the executor."),
    "jitter_ms": (NUMBER, "Of the effect, against one period after the last one."),
    "superseded": (INTEGER, "Observations that nobody took before it."),
    "skipped": (INTEGER, "Releases before it that did not start."),
    "skip_cause": (TEXT, "Why."),
    "skip_subcause": (TEXT, "What of that cause."),
    "skip_evidence": (OBJECT, "Evidence of the cause."),
    "passes": (INTEGER, "Forward passes of the decision."),
    "tokens": (INTEGER, "Tokens that went through the model."),
    "reused": (INTEGER, "Tokens that were cached."),
    "confidence": (NUMBER, "The least of the heads'."),
    "error": (TEXT, "What was raised, or why it failed."),
    "where": (TEXT, "In which file and line."),
    "observation": (TEXT, "As the model saw it."),
    "instruction": (TEXT, "It is decided by; active from now on."),
    "history": ({"type": "array", "items": TEXT}, "The last calls."),
    "in_force": (MAYBE_ACTIVE, "With hysteresis: the active call, as `call`. Of a safe call: whether all are active."),
    "data": ({}, "As the world gave it; of a large array, type and shape."),
    "timestamp": (TIME, "When it was taken, UTC."),
    "frame_id": (TEXT, "world."),
    "format": (TEXT, "png or jpeg."),
    "further": (INTEGER, "The tick."),
    "first": (INTEGER, "The tick whose observation it answers."),
    "plan": (INTEGER, "The tick whose observation it answers."),
    "outcome": (TEXT, "Of a further call, a first answer or a plan (docs/record.md, docs/deadlines.md)."),
    "over": (FLAG, "It ended after the deadline."),
    "answer": (MAYBE_OBJECT, "The call: name, arguments; null: the active one stays."),
    "loss": (TEXT, "Why there is none, of an endpoint: timeout, connection, refused, malformed or http_STATUS."),
    "answer_ms": (NUMBER, "From the request to the answer."),
    "plan_ms": (NUMBER, "From the request to the plan."),
    "called": (TEXT, "Name of the function."),
    "arguments": (OBJECT, "Typed."),
    "ack": (INTEGER, "The tick."),
    "status": (TEXT, "executed, expired, refused or failed."),
    "result": ({}, "What the function gave."),
    "late": (INTEGER, "The tick whose decision came after its deadline."),
    "overran": (INTEGER, "The tick whose call ended after its deadline."),
    "used": (FLAG, "Whether the late call acted."),
    "waited_ms": (NUMBER, "It was in time, and waited so long for a person's yes."),
    "effect": (TEXT, "acted, epoch_over, too_late, refused or failed."),
    "safe": (MAYBE_TEXT, "The safe call; null: the agent has none."),
    "attempt": (INTEGER, "From 1."),
    "world": (TEXT, "over, where its last episode has ended: it took none, or makes no step with it."),
    "refused": (TEXT, "The one that the decider cannot take."),
    "said": (TEXT, "The words of a person."),
    "understood": (MAYBE_TEXT, "The canonical instruction; null: it was not understood."),
    "not_understood": (TEXT, "Why: none, unsure, illegal, timeout, overtaken, or how the interpreter failed."),
    "detail": (TEXT, "More of that."),
    "by": (TEXT, "keyboard, page or wire; of words the interpreter (itself: they are canonical, and need none)."),
    "sure": (NUMBER, "The probability of the least certain part of the answer."),
    "took_ms": (NUMBER, "How long it took."),
    "people": (TEXT, "pause, resume, stop, confirm, deny; ask (may this call act?) or unanswered."),
    "seconds": (NUMBER, "So long the call waits for an answer."),
    "void": (FLAG, "The answer came too late, or to another call."),
    "episode": (OBJECT, "seed, return, success, seconds, detail."),
    "host_event": (OBJECT, "t_s, event, seconds, decider."),
    "fault": (TEXT, "What it was doing."),
    "log": (TEXT, "The line."),
    "header": (OBJECT, "Settings and machine."),
    "schema_version": (INTEGER, "Of this format."),
    "start": (OBJECT, "Decoder and warm-up."),
    "origin_ns": (INTEGER, "The first release, CLOCK_MONOTONIC: all `t_s` count from it."),
    "end": (MAYBE_TEXT, "Why it ended."),
    "open": (INTEGER, "Ticks in flight at the end: no releases."),
    "safe_in_force": (MAYBE_FLAG, "Whether the safe call was active at the end."),
}
_DECIDED = "cause subcause spans_ms latency_ms decide_ms execute_ms error where"
_SCORED = "passes tokens reused confidence kept decided_by"
# Topic: what its messages are, the keys that tell an event of it, its other fields.
CHANNELS: dict[str, tuple[str, str, str]] = {
    "/tick": (
        "One tick, when it is over.",
        "kind",
        f"k t_s member rested evidence why action call answers step steps wake_ms age_ms jitter_ms epoch seq "
        f"superseded skipped skip_cause skip_subcause skip_evidence {_DECIDED} {_SCORED}",
    ),
    "/observation": (
        "What a tick was decided by: instruction, text, history and tools make a row.",
        "observation",
        "k seq epoch t_s instruction history in_force data member",
    ),
    "/picture": (
        "The world as its client sent it (foxglove.CompressedImage).",
        "frame_id",
        "timestamp data format",
    ),
    "/further": (
        "What became of a further call of a tick, where it takes several.",
        "further",
        f"n t_s outcome over age_ms call why action {_DECIDED} {_SCORED}",
    ),
    "/first": (
        "Where there is a backup: an answer of the first decider, or why there is none, whatever became of it.",
        "first",
        "n outcome answer loss answer_ms t_s confidence error",
    ),
    "/plan": (
        "A plan of several calls that was made, or why there is none.",
        "plan",
        "outcome steps loss plan_ms t_s error",
    ),
    "/call": ("A call that acted.", "called", "arguments k epoch why t_s member"),
    "/result": ("What a client says became of a call.", "ack", "status why n result t_s error"),
    "/late": (
        "What came of a tick after its deadline: its decision (late), or the end of its call (overran).",
        "late overran",
        f"used waited_ms effect call t_s evidence {_DECIDED}",
    ),
    "/safe": ("One attempt of a safe call.", "safe", "why t_s attempt in_force member world error where"),
    "/instruction": ("The instruction changed.", "instruction", "refused t_s"),
    "/understood": (
        "Words were understood as a goal, or were not.",
        "understood",
        "said not_understood detail by sure took_ms t_s",
    ),
    "/people": ("What people did to the run; or a question to them.", "people", "by k call seconds void t_s"),
    "/episode": ("An episode ended.", "episode", ""),
    "/host": ("The decoder was lost, or came back.", "host_event", ""),
    "/fault": ("The world raised.", "fault", "t_s error where"),
    "/log": ("A line for people.", "log", "t_s"),
    "/run": (
        "The run: its settings first, then how it started, the first release, and how it ended.",
        "header start origin_ns end",
        "schema_version t_s open safe_in_force skipped skip_cause skip_subcause skip_evidence",
    ),
}
# `observation` before `instruction`: an observation has both.
_TOPICS = {key: topic for topic, (_, keys, _) in CHANNELS.items() for key in keys.split()}


def topic_of(event: Mapping[str, Any]) -> str:
    """Return where an event belongs. Raises KeyError where its kind is unknown."""
    for key, topic in _TOPICS.items():
        if key in event:
            return topic
    raise KeyError(f"an event of no known kind: {', '.join(event)}")


def schema_name(topic: str) -> str:
    """Return the name of a topic's schema."""
    return SCHEMAS.get(topic, f"rtcontrol{topic.replace('/', '.')}")


def schema(topic: str) -> dict[str, Any]:
    """Return the JSON Schema of a topic's messages."""
    about, keys, fields = CHANNELS[topic]
    properties = {name: {**FIELDS[name][0], "description": FIELDS[name][1]} for name in f"{keys} {fields}".split()}
    if topic == "/picture":
        properties["data"] = {"type": "string", "contentEncoding": "base64", "description": "The file."}
    return {"title": schema_name(topic), "description": about, "type": "object", "properties": properties}


# -- JSON -------------------------------------------------------------------------------------------------------------


def encoded(event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON of at most `MOST_BYTES`, whatever a world shows or a client sends.

    A value that JSON lacks becomes text, a field that is too large its size.
    """
    try:
        text = _json(event)
    except Exception:
        event = {name: plain(value) for name, value in event.items()}
        text = _json(event)
    if len(text) > MOST_BYTES:
        text = _json({name: _outline(value) for name, value in event.items()})
    return text


def plain(value: Any) -> Any:
    """Return a value as JSON takes it, in new containers; of one that cannot be written, why not."""
    try:
        return _plain(value)
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _plain(value: Any) -> Any:
    """As `plain`. Raises what a value raises that cannot even be text, and RecursionError."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else _plain(_simpler(value))


def _simpler(value: Any) -> Any:
    """Return the nearest dict, list or text."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray):
        return [*value] if len(value) <= MOST_NUMBERS else {"dtype": "bytes", "shape": [len(value)]}
    if (shape := getattr(value, "shape", None)) is not None and hasattr(value, "tolist"):
        small = math.prod(shape) <= MOST_NUMBERS
        return value.tolist() if small else {"dtype": str(value.dtype), "shape": [*shape]}
    return [*value] if isinstance(value, tuple | set | frozenset) else str(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_simpler, allow_nan=False).encode()


def _outline(value: Any) -> Any:
    size, most = len(_json(value)), MOST_BYTES // 16
    if size <= most:
        return value
    return value[: most // 8] if isinstance(value, str) else {"unreadable": f"{size} bytes"}
